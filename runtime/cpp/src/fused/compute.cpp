// Compiled once for each instruction set.
#include "fused/compute.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fused/compute.cpp"  // NOLINT(cppcoreguidelines-macro-usage): Highway asks for it
#include <hwy/foreach_target.h>                 // IWYU pragma: keep

#if HWY_ARCH_X86_64
#include <cpuid.h>
#endif

#include <limits>

#include "errors.hpp"
#include "fused/decoder-inl.hpp"
#include "fused/encoder-inl.hpp"
#include "system/system.hpp"

HWY_BEFORE_NAMESPACE();
namespace txport::core::fused::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SSE2  // what every x86-64 has, which the engine refuses: nothing is compiled
const InstructionSet kHere{};
#else
void Encode(const EncodeJob& job, const Member& member) { Encoder(job, member).Run(); }
void Step(const StepJob& job, const Member& member) { Decoder(job, member).Run(); }

void Project(const Matrix& projection, const float* hidden, const OwnBuffers& own, Member::Range panels,
             float* logits) {
  const std::size_t size = (panels.end - panels.begin) * kPanel;
  Input{own, hidden, 1, projection.inputs}.Times(projection, panels.begin, panels.end, {logits, size});
}

double LogSumExp(const float* logits, std::size_t size) {
  VF most = hn::Set(df, -std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < size; i += kLanes) most = hn::Max(most, hn::Load(df, logits + i));
  most = hn::Set(df, hn::ReduceMax(df, most));
  const float sum = Sum(size, [&](std::size_t i) HWY_ATTR { return Exp(hn::Sub(hn::Load(df, logits + i), most)); });
  return static_cast<double>(hn::GetLane(most)) + std::log(static_cast<double>(sum));
}

const InstructionSet kHere{hwy::TargetName(HWY_TARGET), Encode, Step, Project, LogSumExp};
#endif

const InstructionSet& Here() { return kHere; }

}  // namespace txport::core::fused::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace txport::core::fused {

namespace {

#if HWY_ARCH_X86_64
// By CPUID itself: zig's library answers no to every __builtin_cpu_supports.
Extensions extensions_of_this_processor() {
  Extensions here;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  const bool avx512_vnni = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 11U & 1U) != 0;
  const bool avx512_vl = (ebx >> 31U & 1U) != 0;
  // Whether the operating system keeps AVX-512's registers. Where AVX2 is in use it can be asked, and keeps AVX's.
  if (avx512_vnni && avx512_vl && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 27U & 1U) != 0) {
    asm("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    here.avx512_vnni = (eax & 0xE6U) == 0xE6U;
  }
#ifdef TXPORT_AVX_VNNI
  here.avx_vnni = __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4U & 1U) != 0;
#endif
  return here;
}
#else
Extensions extensions_of_this_processor() {
  Extensions here;
  here.i8mm = has_smmla();
  return here;
}
#endif

#if HWY_ARCH_ARM_A64 && HWY_STATIC_TARGET != HWY_NEON
// Highway's NEON, which requires AES, has SDOT here as well; every arm64 has its NEON_WITHOUT_AES.
__attribute__((constructor)) void ask_for_sdot() {
  if (!has_sdot()) hwy::DisableTargets(HWY_NEON);
}
#endif

// Do without instruction sets newer than AVX2 if the environment variable TXPORT_MAX_ISA is AVX2.
bool limit_instruction_sets() {
  const std::string limit = variable("TXPORT_MAX_ISA");
  if (limit.empty()) return false;
  if (limit != "AVX2" || HWY_ARCH_X86_64 == 0) {
    throw InputError("TXPORT_MAX_ISA is '" + limit + "': set it to AVX2, on x86-64, or unset it");
  }
  hwy::DisableTargets(HWY_AVX2 - 1);  // better targets have lower bits
  extensions() = {};
  return true;
}

}  // namespace

Extensions& extensions() {
  static Extensions here = extensions_of_this_processor();
  return here;
}

Member::Range share_tokens(const EncodeJob& job, const Member& member, SourceToken* to) {
  const Member::Range share = member.share(job.tokens);
  Member::Range mine{0, 0};
  std::size_t token = 0;  // the sentence's first
  std::size_t start = 0;
  for (std::size_t s = 0; s < job.count; ++s) {
    const std::size_t length = job.sources[s].length;
    for (std::size_t i = 0; i < length; ++i) {
      const std::size_t first = token + i / 4 * 4;
      if (first < share.begin) mine.begin = mine.end = token + i + 1;
      if (first < share.begin || first >= share.end) continue;
      *to++ = {s, i, start};
      ++mine.end;
    }
    token += length;
    start += source_shape(job.model, length).bytes();
  }
  return mine;
}

HWY_EXPORT(Here);
const InstructionSet& instruction_set() {
  [[maybe_unused]] static const bool limited = limit_instruction_sets();
  return HWY_DYNAMIC_DISPATCH(Here)();
}

}  // namespace txport::core::fused
#endif
