// The op table of one instruction set.
//
// Compiled once per set, as every op is; dispatch.cpp chooses among the tables.
#include "isa_ops.h"

namespace rocmforge::ROCMFORGE_ISA {

#define ROCMFORGE_QUOTE(name) #name
#define ROCMFORGE_NAME(name) ROCMFORGE_QUOTE(name)

extern const Ops table = {
    ROCMFORGE_NAME(ROCMFORGE_ISA),
    row_bytes,
    tile_bytes,
    matmul_workspace,
    pack,
    matmul,
    dequantize,
    attention,
    kv_append,
    rmsnorm,
    layernorm,
    rope,
    softmax,
    swiglu,
    gelu,
    softcap,
    route,
    add_experts,
    peak_reads,
    peak_products,
};

}  // namespace rocmforge::ROCMFORGE_ISA
