// How to draw a column from a row of logits, and the list of columns from which a block does so.
#pragma once

#include "columns.h"

constexpr int kBins = 2048;
constexpr int kListed = 4096;            // most columns of the list in LDS
constexpr float kBinsPerLogit = 64.0f;   // of a histogram of counts
constexpr float kBinsPerDepth = 128.0f;  // of weights: depth is (top - logit) / temperature
constexpr float kOne = 0x1p42f;          // the weight of the top logit
constexpr float kBinOne = 0x1p14f;       // what a weight at the upper edge of a bin adds to it

struct Draw {
    double uniform;  // in [0, 1)
    double top_p;
    float temperature;
    float min_p;
    int top_k;
    int unused;
};
static_assert(sizeof(Draw) == 32);

// The weight of a logit, and its bin in the histogram.
struct Scale {
    float top;
    float inverse;  // 1 / temperature
    float bins_per_logit;

    DEVICE float weight(float logit) const { return fast_exp((logit - top) * inverse); }
    DEVICE u64 fixed(float logit) const { return static_cast<u64>(weight(logit) * kOne); }
    // kBins if the logit lies below all bins.
    DEVICE int bin(float logit) const {
        const float at = (top - logit) * bins_per_logit;
        return at < static_cast<float>(kBins) ? static_cast<int>(at) : kBins;
    }
    // The weight relative to the one at its bin's upper edge, in fixed point, rounded down.
    DEVICE uint32_t part_of_bin(float logit, int bin) const {
        const float edge = static_cast<float>(bin) * (1.0f / kBinsPerDepth);
        return static_cast<uint32_t>(fast_exp((logit - top) * inverse + edge) * kBinOne);
    }
    // The weight of a bin that has this sum of such parts.
    static DEVICE u64 weight_of_bin(uint32_t parts, int bin) {
        const float edge = fast_exp(static_cast<float>(bin) * (-1.0f / kBinsPerDepth));
        return static_cast<u64>(static_cast<float>(parts) * edge * (kOne / kBinOne));
    }
};

// share * total rounded up to a whole number from 1 to total.
DEVICE u64 part_of(double share, u64 total) {
    const double goal = share * static_cast<double>(total);
    u64 part = static_cast<u64>(goal);
    if (static_cast<double>(part) < goal || part == 0) ++part;
    return part < total ? part : total;
}

// The least running sum, up to `total`, that exceeds this share of it.
DEVICE u64 share_of(double share, u64 total) {
    const u64 passed = static_cast<u64>(share * static_cast<double>(total));
    return passed < total ? passed + 1 : total;
}

// One row of logits and how to draw from it.
struct Row {
    const float* logits;
    int columns;
    Draw draw;
    Scale scale;
    bool by_count, by_weight;  // whether top-k, and whether top-p, leaves anything out
};

// Columns of the row that were copied to LDS, in any order.
struct List {
    const u64* ranks;
    int count;     // below 0: there is no list, because it was too long or nothing limits it
    u64 above[2];  // count and weight of the columns whose bins lie before the list's
    // The length of the list if it has every column that may be drawn, else -1: read the row.
    DEVICE int count_all() const { return above[0] == 0 ? count : -1; }
};

// Adds a column to a list in LDS. Past the list's room only its length grows.
DEVICE void list_column(u64 (&ranks)[kListed], uint32_t& listed, int column, float logit) {
    const uint32_t slot = shared_add(&listed, 1);
    if (slot < kListed) ranks[slot] = rank_of(column, logit);
}
