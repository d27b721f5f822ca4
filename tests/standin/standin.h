// What the parts of the HIP runtime's stand-in share: error codes, devices, the queues of work.
//
// The stand-in runs kernels on the CPU under unmodified hip-python, for tests. Work given to a
// stream waits in its device's queue, in order, and runs when the host waits for any, so that a
// missing synchronization shows; devices that all have work run it at the same time. Kernels for
// wave 32 run a block's threads from the first to the last, those for wave 64 from the last to the
// first (STANDIN_TURN=1: the other way), so that a missing barrier shows. It knows no kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "calls.h"

namespace standin {

// The values of hipError_t.
enum Error {
    kSuccess = 0,
    kInvalidValue = 1,
    kOutOfMemory = 2,
    kInvalidConfiguration = 9,
    kInvalidMemcpyDirection = 21,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kInvalidImage = 200,
    kNoBinaryForGpu = 209,
    kSharedObjectInitFailed = 303,
    kInvalidHandle = 400,
    kNotFound = 500,
    kNotReady = 600,
    kLaunchFailure = 719,
    kCaptureUnsupported = 900,
    kCaptureInvalidated = 901,
    kCaptureUnmatched = 903,
    kCaptureUnjoined = 904,
    kReached = 704,
    kCapturedEvent = 907,
};

// One pretended GPU. STANDIN_DEVICES lists them by commas, each an architecture that a
// ":integrated" may follow; the wave size follows from the architecture.
struct Device {
    std::string architecture;  // as HIP gives it, with feature suffixes
    int wave_size;
    bool integrated;
    size_t memory_bytes;  // STANDIN_MEMORY
};

std::vector<Device> devices();
int current_device();

// Every entry point holds this lock.
std::mutex& lock();

struct Stream;
using Work = std::function<Error()>;

// Puts work on a stream: into its graph where it is being captured, else into the queue.
Error enqueue(Stream* stream, Work work);
// Runs all work in the queues; the first error of a part of it is returned once.
Error finish_all();
// Whether a call that waits, allocates or frees is forbidden, since some stream is being captured.
bool capturing();

// Planted times instead of real ones, in seconds: what a kernel takes on the device and a launch on
// the host, and how far the two are.
struct Clocks {
    double kernel, launch, host, device;
};
// Null where events read the real clock.
Clocks* planted_clocks();

// Whether [address, address + bytes) lies inside one allocation of a device, or of pinned memory.
bool is_device_memory(const void* address, size_t bytes);
bool is_pinned_memory(const void* address, size_t bytes);

// Prints what went wrong to stderr, for what an error code cannot say.
void explain(const std::string& what);

}  // namespace standin

// Opens every entry point: counts the call and takes the lock.
#define ENTER(name)             \
    standin::count_call(#name); \
    const std::lock_guard guard(standin::lock())
