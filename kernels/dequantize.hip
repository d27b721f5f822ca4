// dequantize: out = the weights of raw GGUF rows: scale * (code - zero) + offset, or scale *
// table[code], or the number itself. The float32 weights are bit for bit those of
// rocmforge/gguf/quants.py. Every product scale * code is exact in float32, so it does not matter
// whether the compiler fuses it with the sum.
//
//   raw     (rows, row bytes) blocks or numbers of FORMAT as in a GGUF file, aligned to 16
//   out     (rows, K) float32, or f16 if `half`, aligned to 16
//   pieces  ceil(rows * K / 8192); the last one has `rest` columns, the others 8192
//
// Threads: block i takes piece i of the columns of all rows, one row after another. It decodes the
// piece in LDS (raw.h); a thread stores four neighbouring columns at a time. Grid (pieces).
// Limits: K whole blocks of FORMAT.
// Launched by rocmforge/gpu/ops/dequantize.py.
#include "raw.h"

struct DequantizeArgs {
    const uint8_t* raw;
    uint8_t* out;
    int pieces, rest, half;
};

KERNEL(dequantize, DequantizeArgs, kRawThreads) {
    SHARED Raw<FORMAT> raw;
    const int columns = static_cast<int>(block_x()) + 1 < a.pieces ? kRawColumns : a.rest;
    const u64 first = static_cast<u64>(block_x()) * kRawColumns;
    const uint8_t* from = a.raw + first / raw.kColumns * raw.kBytes;
    raw.fetch(from, columns);
    block_sync();
    for (int column = 4 * thread_x(); column < columns; column += 4 * kRawThreads) {
        float x[4];
        raw.values(from, column, columns, x);
        if (column + 4 > columns) {
            for (int i = 0; column + i < columns; ++i) {
                const u64 at = first + column + i;
                if (a.half) {
                    reinterpret_cast<f16*>(a.out)[at] = to_f16(x[i]);
                } else {
                    reinterpret_cast<float*>(a.out)[at] = x[i];
                }
            }
        } else if (a.half) {
            reinterpret_cast<u32x2*>(a.out)[(first + column) / 4] = {pack_halves(x[0], x[1]),
                                                                     pack_halves(x[2], x[3])};
        } else {
            reinterpret_cast<u32x4*>(a.out)[(first + column) / 4] = {
                bit_cast<uint32_t>(x[0]), bit_cast<uint32_t>(x[1]), bit_cast<uint32_t>(x[2]),
                bit_cast<uint32_t>(x[3])};
        }
    }
}
