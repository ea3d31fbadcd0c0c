// What the host does to the simulated devices of this process: every call costs host time, moves the local timeline and
// leaves a record. One mutex guards all of it, so that records of one clock domain are in the order of its clock.
//
// May be called from any thread, with or without the GIL, unless said otherwise.
#pragma once

#include <cstdint>
#include <vector>

#include "clock.h"
#include "record.h"
#include "timeline.h"

namespace phantora::native::device {

// --- records
void set_recording(bool on); // off: nothing is recorded and clocks stand still
bool is_recording();
int64_t num_records();       // ever, also those sent already
void take_records(std::vector<Record>& records); // empties the ring
void emit(Kind kind, int device, int64_t a, int64_t b, int64_t c);
// For callers that hold a lock of their own: like emit(), but a full ring stays full. Call flush_if_full() afterwards,
// without that lock (sending may release and take the GIL). The same holds for the other functions named _only.
void emit_only(Kind kind, int device, int64_t a, int64_t b, int64_t c);
void flush_if_full();
void charge(Kind kind); // a call that has a cost and leaves no record
void charge_view(Kind kind); // kView or kGradient
void charge_units(Kind kind, int64_t count); // modelled host time that no call of the device carries

// --- operators
struct Signature {
  int64_t duration_ns = 0;
  CallCost host;
};
int64_t define_signature(const Signature& signature); // ids count from 0
void launch(int64_t signature, int device, int64_t stream); // negative: nothing for the device to do

// --- events: every record has a new id, so that a wait names the version of its time
int64_t record_event(int device, int64_t stream, int64_t replaced_event = 0);
void wait_event(int device, int64_t stream, int64_t event);
void destroy_event(int device, int64_t event);
int64_t record_event_only(int device, int64_t stream, int64_t replaced_event = 0);
void destroy_event_only(int device, int64_t event);
bool is_known_done(int64_t event); // costs nothing and asks nobody
bool must_ask_whether_done(int64_t event); // false: it is over, or certainly not yet
bool ask_whether_done(int64_t event); // costs nothing in virtual time; may need the GIL: hold no lock

// --- waits; what is not known locally is asked of the sink (so these may need the GIL: hold no lock)
void synchronize_stream(int device, int64_t stream);
void synchronize_event(int device, int64_t event);
void synchronize_device(int device);
bool query_stream(int device, int64_t stream);
bool query_event(int64_t event);
double elapsed_ms(int64_t begin_event, int64_t end_event);

// --- the local timeline
void set_local_answers(bool on); // off: the engine is asked for the end of every kernel
void mark_unresolved(int device, int64_t stream);
void resolve_stream(int device, int64_t stream, int64_t end_ns);
void resolve_event(int64_t event, int64_t time_ns);
Progress stream_state(int device, int64_t stream);
Progress event_state(int64_t event);
int64_t num_known_events();

// --- CUDA graphs: while capturing, launches and events are kept instead of run
void begin_capture(int device, int64_t stream);
int64_t end_capture(); // graph id
bool is_capturing();
// Issues the captured work again for one host call: what was captured on the origin stream goes to `stream`. Captured
// collectives are handed to the sink, which knows how to issue them anew.
void launch_graph(int64_t graph, int device, int64_t stream);
void destroy_graph(int64_t graph);

void lock_for_fork();
void unlock_after_fork();
// A forked process starts at time 0 with idle streams and an empty ring.
void reset_after_fork(bool keep_recording);

} // namespace phantora::native::device
