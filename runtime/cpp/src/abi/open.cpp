// txport_engine_open, which only libtxport contains.

#include <memory>
#include <utility>

#include "abi/engine.hpp"
#include "abi/guard.hpp"
#include "abi/options.hpp"
#include "bundle/manifest.hpp"
#include "engines/choice.hpp"
#include "txport/engine.h"

using txport::abi::required;
using txport::abi::unless_null;

txport_code txport_engine_open(const char* bundle, const txport_engine_options* options,
                               txport_engine_handle** engine) noexcept {
  return txport::abi::guarded([&] {
    required(engine, "engine") = nullptr;
    const txport::core::Bundle files(&required(bundle, "bundle"));
    const auto fields = txport::abi::read_options(options, sizeof(txport_engine_options), "txport_engine_options");
    txport::abi::within(fields.threads, 0, 4096, "threads");
    const auto manifest = txport::core::Manifest::load(files);
    auto choice =
        txport::core::choose(files, manifest,
                             {unless_null(fields.device).value_or("auto"), unless_null(fields.engine).value_or("auto"),
                              unless_null(fields.lowering).value_or(""), false});
    auto opened = txport::core::open_engine(files, manifest, choice, {fields.threads, fields.many != 0},
                                            txport::abi::listener(fields.warning, fields.warning_user));
    *engine = std::make_unique<txport_engine_handle>(txport_engine_handle{std::move(opened), manifest.model}).release();
    return TXPORT_OK;
  });
}
