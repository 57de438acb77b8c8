// Matrix products, as Python sees them.
#pragma once

#include <nanobind/nanobind.h>

namespace quire {

void bind_recurrence(nanobind::module_& m);

}  // namespace quire
