// Devices, their properties, names of errors, and the lock. It knows no stream and no kernel.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "memory.h"
#include "standin.h"

namespace standin {
namespace {

thread_local int device_of_thread = 0;
std::set<std::pair<int, int>> reached;  // a device, and another one whose memory it may use

std::string setting(const char* name, const char* otherwise) {
    const char* value = std::getenv(name);
    return value ? value : otherwise;
}

// hipDeviceProp_tR0600 as HIP 6 and later lay it out; what lies between the fields that are named
// here is zero. tests/gpu/test_hip_runtime.py reads every field back through hip-python.
struct Properties {
    char name[256];
    char uuid[16], luid[8];
    unsigned luid_device_node_mask;
    size_t total_global_memory, shared_memory_per_block;
    int registers_per_block, warp_size;
    size_t memory_pitch;
    int max_threads_per_block, max_threads[3], max_grid[3], clock_rate;
    size_t total_constant_memory;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
    int device_overlap, multiprocessor_count, kernel_timeout, integrated;
    int until_surface_alignment[42];  // canMapHostMemory … maxSurfaceCubemapLayered
    size_t surface_alignment;
    int until_shared_memory_per_multiprocessor[16];  // concurrentKernels … localL1CacheSupported
    size_t shared_memory_per_multiprocessor;
    int until_shared_memory_per_block_optin[12];  // regsPerMultiprocessor … cooperativeMulti…
    size_t shared_memory_per_block_optin;
    int until_reserved_shared_memory[4];
    size_t reserved_shared_memory;
    int until_reserved[13];  // hostRegisterSupported … unifiedFunctionPointers
    int reserved[63], hip_reserved[32];
    char architecture[256];
    size_t max_shared_memory_per_multiprocessor;
    int clock_instruction_rate;
    unsigned features;
    void *memory_flush, *register_flush;
    int cooperative[4], is_large_bar, asic_revision;
};

}  // namespace

std::vector<Device> devices() {
    std::vector<Device> found;
    const std::string list = setting("STANDIN_DEVICES", "gfx1100,gfx90a:sramecc+:xnack-") + ",";
    const size_t memory =
        std::strtoull(setting("STANDIN_MEMORY", "4294967296").c_str(), nullptr, 0);
    for (size_t start = 0, end; (end = list.find(',', start)) != list.npos; start = end + 1) {
        std::string name = list.substr(start, end - start);
        if (name.empty()) continue;
        const std::string mark = ":integrated";
        const size_t at = name.find(mark);
        if (at != name.npos) name.erase(at, mark.size());
        const bool wide = name.rfind("gfx9", 0) == 0;
        found.push_back({name, wide ? 64 : 32, at != name.npos, memory});
    }
    return found;
}

int current_device() {
    return device_of_thread;
}

std::mutex& lock() {
    static std::mutex mutex;
    return mutex;
}

void explain(const std::string& what) {
    std::fprintf(stderr, "stand-in of the HIP runtime: %s\n", what.c_str());
}

}  // namespace standin

using namespace standin;

ENTRY Error hipGetDeviceCount(int* count) {
    ENTER(hipGetDeviceCount);
    *count = static_cast<int>(devices().size());
    return *count ? kSuccess : kNoDevice;
}

ENTRY Error hipRuntimeGetVersion(int* version) {
    ENTER(hipRuntimeGetVersion);
    *version = std::atoi(setting("STANDIN_HIP_VERSION", "0").c_str());
    return kSuccess;
}

ENTRY Error hipSetDevice(int index) {
    ENTER(hipSetDevice);
    if (index < 0 || index >= static_cast<int>(devices().size())) return kInvalidDevice;
    device_of_thread = index;
    return kSuccess;
}

// STANDIN_NO_PEERS: no device reaches another one's memory, as across root complexes.
ENTRY Error hipDeviceCanAccessPeer(int* can, int device, int peer) {
    ENTER(hipDeviceCanAccessPeer);
    const int count = static_cast<int>(devices().size());
    for (const int index : {device, peer}) {
        if (index < 0 || index >= count) return kInvalidDevice;
    }
    *can = device != peer && std::getenv("STANDIN_NO_PEERS") == nullptr;
    return kSuccess;
}

ENTRY Error hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    ENTER(hipDeviceEnablePeerAccess);
    if (flags != 0) return kInvalidValue;
    if (peer < 0 || peer >= static_cast<int>(devices().size())) return kInvalidDevice;
    return reached.insert({device_of_thread, peer}).second ? kSuccess : kReached;
}

ENTRY Error hipGetDevicePropertiesR0600(Properties* out, int index) {
    ENTER(hipGetDeviceProperties);
    const std::vector<Device> all = devices();
    if (index < 0 || index >= static_cast<int>(all.size())) return kInvalidDevice;
    const Device& device = all[static_cast<size_t>(index)];
    *out = {};
    std::snprintf(out->name, sizeof out->name, "CPU stand-in of %s", device.architecture.c_str());
    std::snprintf(out->architecture, sizeof out->architecture, "%s", device.architecture.c_str());
    out->total_global_memory = device.memory_bytes;
    out->shared_memory_per_block = 64 << 10;
    out->registers_per_block = 64 << 10;
    out->warp_size = device.wave_size;
    out->max_threads_per_block = 1024;
    for (int& extent : out->max_threads) extent = 1024;
    for (int& extent : out->max_grid) extent = 0x7fffffff;
    out->multiprocessor_count = 4;
    out->integrated = device.integrated;
    out->asic_revision = 1;
    return kSuccess;
}

ENTRY Error hipMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
    ENTER(hipMemGetInfo);
    const std::vector<Device> all = devices();
    if (current_device() >= static_cast<int>(all.size())) return kInvalidDevice;
    const size_t used = used_bytes(current_device());
    *total_bytes = all[static_cast<size_t>(current_device())].memory_bytes;
    *free_bytes = used < *total_bytes ? *total_bytes - used : 0;
    return kSuccess;
}

ENTRY const char* hipGetErrorString(Error error) {
    count_call("hipGetErrorString");
    switch (error) {
        case kSuccess:
            return "no error";
        case kInvalidValue:
            return "invalid argument";
        case kOutOfMemory:
            return "out of memory";
        case kInvalidConfiguration:
            return "invalid configuration argument";
        case kInvalidMemcpyDirection:
            return "invalid copy direction for memcpy";
        case kNoDevice:
            return "no ROCm-capable device is detected";
        case kInvalidDevice:
            return "invalid device ordinal";
        case kInvalidImage:
            return "device kernel image is invalid";
        case kNoBinaryForGpu:
            return "no kernel image is available for execution on the device";
        case kSharedObjectInitFailed:
            return "shared object initialization failed";
        case kInvalidHandle:
            return "invalid resource handle";
        case kNotFound:
            return "named symbol not found";
        case kNotReady:
            return "device not ready";
        case kLaunchFailure:
            return "unspecified launch failure";
        case kCaptureUnsupported:
            return "operation not permitted when stream is capturing";
        case kCaptureInvalidated:
            return "operation failed due to a previous error during capture";
        case kCaptureUnmatched:
            return "capture was not initiated in this stream";
        case kCaptureUnjoined:
            return "capturing stream has unjoined work";
        case kReached:
            return "peer access is already enabled";
        case kCapturedEvent:
            return "operation not permitted on an event last recorded in a "
                   "capturing stream";
    }
    return "unknown error";
}

ENTRY long standin_calls(const char* name) {
    return calls_of(name);
}
