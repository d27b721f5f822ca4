// Runs the threads of one block as fibers on the calling thread. It knows no HIP and no kernel.
#pragma once

#include <string>

namespace standin {

struct Dim {
    unsigned x, y, z;
};

// The layouts of HostThread and HostRuntime in kernels/device.h.
struct ThreadIndex {
    Dim thread, block, grid;
};
struct HostInterface {
    const ThreadIndex* (*self)();
    void (*block_barrier)();
    unsigned long (*exchange)(unsigned long value, unsigned source);
};

extern const HostInterface kHostInterface;

constexpr int kMostDevices = 16;

struct BlockRun {
    void (*kernel)(const void* arguments);
    const void* arguments;
    Dim block, grid;
    unsigned threads, wave_size;
    int device;    // blocks of different devices may run on different threads at the same time
    bool reverse;  // the last thread runs first: with both orders, a missing barrier shows
};

// Runs a block to its end. Returns what is wrong with it, or an empty text: threads that wait for
// others that never come are a fault of the kernel and end the block.
std::string run_block(const BlockRun& run);

}  // namespace standin
