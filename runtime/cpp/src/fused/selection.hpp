// The part of the projection that a batch needs whose rows choose among words of their own (a shortlist).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "fused/model.hpp"
#include "fused/row.hpp"
#include "fused/team.hpp"
#include "fused/workspace.hpp"

namespace txport::core::fused {

// The union of some lists of words, and the projection's outputs for these alone: column c is the token ids()[c].
// Where they are so many that copying them would not pay, it is the projection itself, whose column c is the token c.
class Selection {
 public:
  // Without the weights, which `gather` copies. A list may be null: it has all words. Throws std::bad_alloc.
  Selection(const Model& model, const std::vector<Words>& lists);

  // Copies this thread's share of the panels. All threads must have done so before the projection is read.
  void gather(const Member& member) const;

  bool has(const Words& words) const { return columns_.count(words) > 0; }
  const Matrix& projection() const { return projection_; }
  const UpperBounds& bounds() const { return bounds_; }
  const std::vector<std::int32_t>& ids() const { return ids_; }  // ascending; empty: of the projection itself
  // Of one of the lists; all of them if its words are those of all lists.
  Columns columns(const Words& words) const;

 private:
  const Model& model_;
  std::vector<std::int32_t> ids_;
  std::map<Words, std::vector<std::int32_t>> columns_;
  Block memory_;
  Matrix projection_;
  UpperBounds bounds_;

  std::size_t lay_out(std::byte* base);
};

}  // namespace txport::core::fused
