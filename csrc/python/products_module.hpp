// Matrix products, as Python sees them.
#pragma once

#include <nanobind/nanobind.h>

namespace quire {

void bind_products(nanobind::module_& m);

}  // namespace quire
