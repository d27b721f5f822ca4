// The queues of work, streams, events, and graphs captured from streams. It knows no kernel.
#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <set>
#include <thread>

#include "standin.h"

namespace standin {

// The values of hipStreamCaptureMode: whose calls that wait or allocate a capture forbids.
enum CaptureMode { kGlobal, kThreadLocal, kRelaxed };

struct Graph {
    std::vector<Work> work;
    Stream* origin;
    CaptureMode mode;
    std::thread::id thread;
    bool invalid = false;

    bool forbids() const {
        return mode == kGlobal || (mode == kThreadLocal && thread == std::this_thread::get_id());
    }
};

struct Stream {
    std::shared_ptr<Graph> graph;  // while it is being captured
    bool joined = true;            // the capture's origin has waited for all that this stream got
};

struct Event {
    // When the work before it was done; shared with the queue, which may outlive the event.
    std::shared_ptr<double> seconds;
    std::shared_ptr<Graph> graph;  // when it was recorded in a captured stream
    Stream* stream = nullptr;      // that stream
};

namespace {

std::map<int, std::deque<Work>> queues;  // by device
std::set<Stream*> streams;
std::set<Event*> events;
std::map<Graph*, std::shared_ptr<Graph>> graphs, executables;
Clocks* planted = nullptr;

bool known(Stream* stream) {
    return stream == nullptr || streams.count(stream);
}

double now() {
    using namespace std::chrono;
    if (planted) return planted->device;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

Error run_graph(const Graph& graph) {
    for (const Work& work : graph.work) {
        if (const Error error = work()) return error;
    }
    return kSuccess;
}

Error run_queue(std::deque<Work>& queue) {
    Error first = kSuccess;
    while (!queue.empty()) {
        const Work work = std::move(queue.front());
        queue.pop_front();
        const Error error = work();
        if (first == kSuccess) first = error;
    }
    return first;
}

}  // namespace

Clocks* planted_clocks() {
    return planted;
}

Error enqueue(Stream* stream, Work work) {
    if (!known(stream)) return kInvalidHandle;
    if (stream && stream->graph) {
        if (stream->graph->invalid) return kCaptureInvalidated;
        stream->joined = false;
        stream->graph->work.push_back(std::move(work));
    } else if (planted) {  // the device idles until the host has given it the work
        queues[current_device()].push_back([given = planted->host, work = std::move(work)] {
            planted->device = std::max(planted->device, given);
            return work();
        });
    } else {
        queues[current_device()].push_back(std::move(work));
    }
    return kSuccess;
}

Error finish_all() {
    std::vector<std::deque<Work>*> given;
    for (auto& [device, queue] : queues) {
        if (!queue.empty()) given.push_back(&queue);
    }
    if (given.size() == 1) return run_queue(*given[0]);
    std::vector<Error> errors(given.size(), kSuccess);  // kernels of devices wait for each other
    std::vector<std::thread> threads;
    for (size_t i = 0; i < given.size(); ++i) {
        threads.emplace_back([&, i] { errors[i] = run_queue(*given[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Error error : errors) {
        if (error) return error;
    }
    return kSuccess;
}

bool capturing() {
    bool any = false;
    for (Stream* stream : streams) {
        if (!stream->graph || !stream->graph->forbids()) continue;
        any = stream->graph->invalid = true;
    }
    return any;
}

}  // namespace standin

using namespace standin;

ENTRY Error hipStreamCreateWithFlags(Stream** stream, unsigned) {
    ENTER(hipStreamCreateWithFlags);
    *stream = new Stream;
    streams.insert(*stream);
    return kSuccess;
}

ENTRY Error hipStreamDestroy(Stream* stream) {
    ENTER(hipStreamDestroy);
    if (!streams.erase(stream)) return kInvalidHandle;
    delete stream;
    return kSuccess;
}

ENTRY Error hipStreamSynchronize(Stream* stream) {
    ENTER(hipStreamSynchronize);
    if (!known(stream)) return kInvalidHandle;
    if (capturing() || (stream && stream->graph)) return kCaptureUnsupported;
    return finish_all();
}

ENTRY Error hipDeviceSynchronize() {
    ENTER(hipDeviceSynchronize);
    return capturing() ? kCaptureUnsupported : finish_all();
}

ENTRY Error hipEventCreateWithFlags(Event** event, unsigned) {
    ENTER(hipEventCreateWithFlags);
    *event = new Event;
    events.insert(*event);
    return kSuccess;
}

ENTRY Error hipEventDestroy(Event* event) {
    ENTER(hipEventDestroy);
    if (!events.erase(event)) return kInvalidHandle;
    delete event;
    return kSuccess;
}

ENTRY Error hipEventRecord(Event* event, Stream* stream) {
    ENTER(hipEventRecord);
    if (!known(stream) || !events.count(event)) return kInvalidHandle;
    event->graph = stream ? stream->graph : nullptr;
    event->stream = stream;
    event->seconds = std::make_shared<double>(0);
    if (event->graph) return event->graph->invalid ? kCaptureInvalidated : kSuccess;
    return enqueue(stream, [seconds = event->seconds] {
        *seconds = now();
        return kSuccess;
    });
}

// A queue keeps the order in which its device was given work, so that outside a capture there is
// nothing to do; of two devices this does not order anything.
ENTRY Error hipStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    ENTER(hipStreamWaitEvent);
    if (!known(stream) || !events.count(event)) return kInvalidHandle;
    if (!event->graph) return kSuccess;
    if (stream == nullptr) return kCaptureUnsupported;
    if (!stream->graph) {
        stream->graph = event->graph;
        stream->joined = false;
    } else if (stream->graph != event->graph) {
        return kCaptureUnsupported;
    }
    if (event->stream != stream && streams.count(event->stream)) event->stream->joined = true;
    return kSuccess;
}

ENTRY Error hipEventSynchronize(Event* event) {
    ENTER(hipEventSynchronize);
    if (!events.count(event)) return kInvalidHandle;
    if (event->graph) return kCapturedEvent;
    return finish_all();
}

// Work runs when the host waits: who asks has it run.
ENTRY Error hipEventQuery(Event* event) {
    ENTER(hipEventQuery);
    if (!events.count(event)) return kInvalidHandle;
    if (event->graph) return kCapturedEvent;
    return finish_all();
}

ENTRY Error hipEventElapsedTime(float* milliseconds, Event* start, Event* end) {
    ENTER(hipEventElapsedTime);
    for (Event* event : {start, end}) {
        if (!events.count(event) || !event->seconds) return kInvalidHandle;
        if (event->graph) return kCapturedEvent;
        if (*event->seconds == 0) return kNotReady;
    }
    *milliseconds = static_cast<float>((*end->seconds - *start->seconds) * 1e3);
    return kSuccess;
}

ENTRY Error hipStreamBeginCapture(Stream* stream, CaptureMode mode) {
    ENTER(hipStreamBeginCapture);
    if (mode < kGlobal || mode > kRelaxed) return kInvalidValue;
    if (stream == nullptr) return kCaptureUnsupported;
    if (!streams.count(stream)) return kInvalidHandle;
    if (stream->graph) return kCaptureUnsupported;
    stream->graph = std::make_shared<Graph>();
    stream->graph->origin = stream;
    stream->graph->mode = mode;
    stream->graph->thread = std::this_thread::get_id();
    return kSuccess;
}

ENTRY Error hipStreamEndCapture(Stream* stream, Graph** out) {
    ENTER(hipStreamEndCapture);
    *out = nullptr;
    if (!streams.count(stream)) return kInvalidHandle;
    const std::shared_ptr<Graph> graph = stream->graph;
    if (!graph || graph->origin != stream) return kCaptureUnmatched;
    Error result = graph->invalid ? kCaptureInvalidated : kSuccess;
    for (Stream* other : streams) {
        if (other->graph != graph) continue;
        if (other != stream && !other->joined && !result) result = kCaptureUnjoined;
        other->graph.reset();
        other->joined = true;
    }
    if (result) return result;
    graphs[graph.get()] = graph;
    *out = graph.get();
    return kSuccess;
}

ENTRY Error hipGraphInstantiateWithFlags(Graph** out, Graph* graph, unsigned long long) {
    ENTER(hipGraphInstantiateWithFlags);
    if (!graphs.count(graph)) return kInvalidHandle;
    auto copy = std::make_shared<Graph>(*graph);
    *out = copy.get();
    executables[*out] = copy;
    return kSuccess;
}

ENTRY Error hipGraphLaunch(Graph* executable, Stream* stream) {
    ENTER(hipGraphLaunch);
    if (planted) planted->host += planted->launch;
    const auto found = executables.find(executable);
    if (found == executables.end()) return kInvalidHandle;
    return enqueue(stream, [graph = found->second] { return run_graph(*graph); });
}

ENTRY Error hipGraphExecDestroy(Graph* executable) {
    ENTER(hipGraphExecDestroy);
    return executables.erase(executable) ? kSuccess : kInvalidHandle;
}

ENTRY Error hipGraphDestroy(Graph* graph) {
    ENTER(hipGraphDestroy);
    return graphs.erase(graph) ? kSuccess : kInvalidHandle;
}

// From now on events read a clock on which every kernel takes `kernel` seconds, and every launch,
// of a kernel or of a graph, `launch` seconds of the host; 0 for both: the real clock.
ENTRY void standin_plant(double kernel, double launch) {
    const std::lock_guard guard(lock());
    delete planted;
    planted = kernel > 0 || launch > 0 ? new Clocks{kernel, launch, 1.0, 1.0} : nullptr;
}
