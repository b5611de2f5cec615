/* The memory that the tracer maps, as documented in docs/agent/memory.md. */
#ifndef TRACEPOINT_HOOK_SHARED_H
#define TRACEPOINT_HOOK_SHARED_H

#include <stddef.h>
#include <stdint.h>

enum mode { MODE_EMPTY, MODE_RING, MODE_TABLE, MODE_SLOW, MODE_SITES };

/* A table without times, which needs no open calls. Internal: clients never see it. */
enum { MODE_ENTRIES = MODE_SITES + 1 };

enum flags {
  FLAG_METHODS = 1,
  FLAG_C_CALLS = 2,
  FLAG_GC = 4,
  FLAG_RAISE = 8,
  FLAG_OBJECTS = 16,
  FLAG_SITES = 32,
  FLAG_CPU = 64,
  FLAG_WHOLE = 128,
  FLAG_SELECT = 256,
  FLAG_HISTOGRAMS = 512,
  FLAG_TARGETS = 1024, /* methods are hooked one by one: targets.c */
  FLAG_FINE = 2048, /* histograms have 3 digits instead of 2 */
};

enum clock { CLOCK_NS, CLOCK_TSC, CLOCK_CNTVCT };

enum condition {
  CONDITION_MISMATCH = 1,
  CONDITION_METHODS_FULL = 2,
  CONDITION_BLOCKS_FULL = 4,
  CONDITION_STREAMS_FULL = 8,
  CONDITION_NO_INNER = 16,
  CONDITION_SILENT = 32,
  CONDITION_OTHER_RACTORS = 64,
  CONDITION_LEFT_OUT = 128,
};

/* The value that the hook read differently from Ruby. */
enum mismatch { MISMATCH_EVENT = 1, MISMATCH_SELF, MISMATCH_FRAME, MISMATCH_METHOD };

enum kind { KIND_NONE, KIND_RUBY, KIND_C, KIND_GC, KIND_RAISE, KIND_OBJECT };

/* Used only in keys: methods that a class or module inherits from another one. */
enum { KIND_INHERITED = 5, KIND_RUBY_INHERITED = KIND_RUBY + KIND_INHERITED };

enum record_kind {
  RECORD_ENTRY = 1,
  RECORD_RETURN,
  RECORD_C_ENTRY,
  RECORD_C_RETURN,
  RECORD_LOST,
  RECORD_GC_BEGIN,
  RECORD_GC_END,
  RECORD_RAISE,
  RECORD_OBJECT,
  RECORD_CPU,
  RECORD_STACK,
  RECORD_PLACE,
  RECORD_THREAD,
  RECORD_TEXT,
};

enum { RECORD_ORPHAN = 1, RECORD_VALUES = 2 };
enum { TEXT_BYTES = 14, TEXT_GOES_ON = 16 }; /* of a TEXT record's flags */

struct record {
  uint64_t time;
  uint32_t method;
  uint16_t depth;
  uint8_t kind;
  uint8_t flags;
};

struct shared_stream {
  uint64_t published;
  uint64_t written;
  uint64_t dropped;
  uint64_t ec;
  uint64_t thread;
  uint32_t tid;
  uint32_t stack;
  uint32_t waiting; /* the counter of a duration that is not counted yet, or 0 */
  uint32_t unused[3];
};

struct shared_method {
  uint64_t owner;
  uint64_t id;
  uint32_t kind;
  uint32_t selected;
  uint64_t unused[5];
  uint64_t entries; /* from here on: a cache line of values that change */
  uint64_t calls;
  uint64_t total;
  uint64_t self;
  uint64_t sum;
  uint64_t max;
  uint32_t recent[4]; /* private to the hook: recently used blocks, by part % 4 */
};

/* Counters of 8 bits each: one cache line. */
enum { BLOCK_COUNTERS = 64 };

struct header {
  char magic[8];
  uint32_t version;
  uint32_t header_size;
  uint64_t size;
  uint32_t pid;
  uint32_t mode;
  uint32_t flags;
  uint32_t clock;
  uint64_t mult;
  uint64_t ticks0, ns0, ticks1, ns1;
  uint64_t methods_offset;
  uint32_t methods_capacity, method_size;
  uint64_t places_offset;
  uint32_t digits, place_size;
  uint64_t blocks_offset;
  uint32_t blocks_capacity, block_size;
  uint64_t streams_offset;
  uint32_t streams_capacity, stream_size;
  uint64_t rings_offset;
  uint32_t ring_records, record_size;
  uint64_t threshold_ns;
  uint64_t unused[3];
  uint32_t state; /* offset 192: from here on, values that change */
  uint32_t methods;
  uint32_t blocks;
  uint32_t streams;
  uint32_t conditions;
  uint32_t mismatch;
  uint64_t no_stream;
  uint64_t no_method;
  uint64_t too_deep;
  uint64_t orphans;
  uint64_t abandoned;
  uint64_t no_block;
  uint64_t no_values;
  uint64_t in_other_ractors;
  uint64_t duplicates;
  uint64_t carries;
};

enum { HEADER_SIZE = 4096, STATE_ARMED = 1, STATE_DISARMED = 2, LINE = 64 };

_Static_assert(sizeof(struct record) == 16, "must match docs/agent/memory.md");
_Static_assert(sizeof(struct shared_stream) == 64, "must match docs/agent/memory.md");
_Static_assert(sizeof(struct shared_method) == 128, "must match docs/agent/memory.md");
_Static_assert(offsetof(struct shared_method, entries) == 64, "must match docs/agent/memory.md");
_Static_assert(offsetof(struct header, methods_offset) == 80, "must match docs/agent/memory.md");
_Static_assert(offsetof(struct header, threshold_ns) == 160, "must match docs/agent/memory.md");
_Static_assert(offsetof(struct header, state) == 192, "must match docs/agent/memory.md");
_Static_assert(offsetof(struct header, duplicates) == 280, "must match docs/agent/memory.md");
_Static_assert(offsetof(struct header, carries) == 288, "must match docs/agent/memory.md");

#define STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELAXED)
#define RELEASE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELEASE)

/* There is one writer, so an atomic load and an atomic store suffice. */
#define ADD(place, amount) STORE(place, (place) + (amount))

#endif
