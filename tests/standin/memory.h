// Device memory of the stand-in, as the other parts see it.
#pragma once

#include <cstddef>

namespace standin {

size_t used_bytes(int device);

}  // namespace standin
