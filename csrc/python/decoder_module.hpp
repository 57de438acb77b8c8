// A decoder's layers, as Python sees them.
#pragma once

#include <nanobind/nanobind.h>

namespace quire {

void bind_decoder(nanobind::module_& m);

}  // namespace quire
