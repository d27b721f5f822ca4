// The fragment maps of kernels/tile.h, for test_tile_maps.py: for each unit, the line and
// k of every lane's elements of A and of B, and the row and column of every lane's sums.
#include "tile.h"

namespace {

template <class Map>
int line_a(int lane, int e) {
    return Map::line(lane, e);
}
template <>
int line_a<MmaSyncMap>(int lane, int e) {
    return MmaSyncMap::line_a(lane, e);
}
template <class Map>
int line_b(int lane, int e) {
    return Map::line(lane, e);
}
template <>
int line_b<MmaSyncMap>(int lane, int e) {
    return MmaSyncMap::line_b(lane, e);
}
template <class Map>
int k_a(int lane, int e) {
    return Map::k(lane, e);
}
template <>
int k_a<MmaSyncMap>(int lane, int e) {
    return MmaSyncMap::k_a(lane, e);
}
template <class Map>
int k_b(int lane, int e) {
    return Map::k(lane, e);
}
template <>
int k_b<MmaSyncMap>(int lane, int e) {
    return MmaSyncMap::k_b(lane, e);
}

// operands: (lanes, halves, 4) of line and k of A and of B; sums: (lanes, values, 2).
template <class Map>
void write(int* operands, int* sums) {
    for (int lane = 0; lane < Map::kLanes; ++lane) {
        for (int e = 0; e < Map::kHalves; ++e) {
            *operands++ = line_a<Map>(lane, e), *operands++ = k_a<Map>(lane, e);
            *operands++ = line_b<Map>(lane, e), *operands++ = k_b<Map>(lane, e);
        }
        for (int v = 0; v < Map::kValues; ++v) {
            *sums++ = Map::row(lane, v), *sums++ = Map::column(lane, v);
        }
    }
}

// What operands made in registers are made of: (lanes, numbers, 3) of the element of A, the line
// and the place in k of a number, then the same of B. Returns how many numbers a lane has in each.
template <class Share>
int write_share(int lanes, int* a, int* b) {
    for (int lane = 0; lane < lanes; ++lane) {
        for (int i = 0; i < Share::kLinesA; ++i) {
            for (int p = 0; p < Share::kPer; ++p) {
                *a++ = Share::element_a(i, p), *a++ = Share::line_a(lane, i);
                *a++ = Share::span(lane) * Share::kPer + p;
            }
        }
        for (int i = 0; i < Share::kLinesB; ++i) {
            for (int p = 0; p < Share::kPer; ++p) {
                *b++ = Share::element_b(i, p), *b++ = Share::line_b(lane, i);
                *b++ = Share::span(lane) * Share::kPer + p;
            }
        }
    }
    return Share::kLinesA * Share::kPer;
}

}  // namespace

extern "C" {
int wmma_gfx11_share(int* a, int* b) {
    return write_share<MapShare<WmmaGfx11Map>>(32, a, b);
}
int wmma_gfx12_share(int* a, int* b) {
    return write_share<MapShare<WmmaGfx12Map>>(32, a, b);
}
int mfma_share(int* a, int* b) {
    return write_share<MapShare<MfmaMap>>(64, a, b);
}
int mma_sync_share(int* a, int* b) {
    return write_share<MmaSyncShare>(32, a, b);
}
void wmma_gfx11(int* operands, int* sums) {
    write<WmmaGfx11Map>(operands, sums);
}
void wmma_gfx12(int* operands, int* sums) {
    write<WmmaGfx12Map>(operands, sums);
}
void mfma(int* operands, int* sums) {
    write<MfmaMap>(operands, sums);
}
void mma_sync(int* operands, int* sums) {
    write<MmaSyncMap>(operands, sums);
}
void dot(int*, int* sums) {
    using Map = DotMap<WAVE>;
    for (int lane = 0; lane < Map::kLanes; ++lane) {
        for (int v = 0; v < Map::kValues; ++v) {
            *sums++ = Map::row(lane, v), *sums++ = Map::column(lane, v);
        }
    }
}
}
