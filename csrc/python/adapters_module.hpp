// The part of the Python module that is about adapters.
#pragma once

#include <nanobind/nanobind.h>

namespace quire {

void bind_adapters(nanobind::module_& m);

}  // namespace quire
