/* Private state of the hook: every decision depends on this memory only. */
#ifndef TRACEPOINT_HOOK_STATE_H
#define TRACEPOINT_HOOK_STATE_H

#include "cruby.h"
#include "shared.h"

/* As packed by agent/arming.rb. Selectors follow. */
struct config {
  uint32_t mode, flags, clock, pid;
  uint64_t mult, ticks0, ns0, ticks1, ns1, threshold_ns, limit_ns;
  uint32_t max_methods, max_blocks, max_streams, ring_records;
  uint32_t has_offsets, cfp_ep, me_owner, me_def;
  uint32_t def_original_id, ment_imemo, svar_imemo, local_flag;
  uint32_t ec_thread, selectors;
};

struct selector {
  uint16_t kind;         /* 0 both, 1 instance, 2 singleton */
  uint16_t wants;        /* enum wants: what its expressions need; 0: no expressions */
  uint32_t owner_length; /* 0: any */
  ID id;                 /* 0: any */
  char owner[];          /* padded to 8 */
};

enum wants { WANTS_SELF = 1, WANTS_BINDING = 2, WANTS_PLACE = 4 };

/* A selector's expressions. Programs have the numbers of their selectors, from 1. */
struct program {
  uint8_t wants;
  uint8_t late; /* consecutive evaluations over the limit; at MAX_LATE, evaluation stops */
};

enum { MAX_SELECTORS = 1024, MAX_LATE = 3 };

/* A call that has not returned. */
struct call {
  uint64_t key; /* orders frames: a callee's key is lower than its caller's */
  uint64_t start;
  uint64_t child; /* ticks spent in callees */
  uint64_t cpu;
  uint64_t at; /* position to which the ring is rewound */
  uint32_t lost, dropped;
  uint32_t method;
  uint16_t target; /* the target that reported it; constant under the global hook */
  uint8_t is_c;
  uint8_t untold;
  uint8_t left_out; /* its ENTRY had no room: its callees are left out with it */
};

enum { MAX_DEPTH = 16384, NO_TARGET = 0 /* targets are numbered from 1 */ };

struct stream {
  /* One cache line: the fields that each event of a table reads. */
  const char *ec;
  const char *vm_stack; /* identifies the stack together with ec, whose address is reused */
  struct call *calls;
  uint32_t *active; /* by method: number of its open calls */
  uint32_t depth;
  int ignored;
  uint32_t waiting; /* counter of the last duration, which is not counted yet; 0: none */
  uint32_t owed; /* open calls whose ENTRY is in the ring and whose RETURN is due */
  struct shared_stream *shared;
  struct record *ring;
  /* Used by rings. */
  uint64_t written, published, tail;
  union {
    struct {
      uint32_t lost;   /* since the last LOST record */
      uint32_t untold; /* no record names the current stack yet */
    };
    uint64_t behind; /* nonzero if either is set */
  };
  uint64_t dropped; /* total */
  const uint64_t *tail_of_reader;
  uint32_t stack;
  uint32_t tid;
  uint64_t stamp; /* number of the last switch to this stream */
  VALUE thread;
} __attribute__((aligned(64)));

/* Half a cache line. */
struct key {
  VALUE owner;
  uint64_t id_and_kind; /* 0: free */
  uint32_t method;
  uint8_t selected;
  uint8_t of_class; /* a method of classes or modules: the receiver determines the method */
  uint16_t program; /* 0: none */
} __attribute__((aligned(32)));

/* A method by its number. definer is the class or module that defines it. */
struct known {
  VALUE owner;
  uint64_t id_and_kind;
  VALUE definer;
};

/* The block that holds a part of a method's histogram. Block 0 is unused. */
struct slot {
  uint32_t key; /* method << PART_BITS | part */
  uint32_t block;
};

/* Widths of a part and of a block, which also fit into one word together. */
enum { PART_BITS = 11, BLOCK_BITS = 21 };

/* Maximum size of the values of a selector's expressions, as TEXT records hold them. */
enum { MAX_VALUES = 1200 };

struct values {
  uint32_t size;
  uint8_t bytes[MAX_VALUES];
};

/* The configuration ends with the offsets for reading a method from a frame. The other
   fields that each event of a table needs follow directly, in two cache lines. */
struct state {
  struct config config;
  struct stream *current __attribute__((aligned(64)));
  struct key *keys; /* the newest table, by hash */
  unsigned keys_shift;
  uint32_t to_check, to_verify; /* number of events to check, and of methods to verify */
  int has_offsets, sites, selecting;
  struct shared_method *methods;
  uint8_t (*blocks)[BLOCK_COUNTERS];
  struct slot *slots; /* index of the blocks, by hash */
  uint32_t slots_shift, bucket_bits;
  uint32_t methods_used, blocks_used;
  hook_function hook;
  hook_function inner; /* for garbage collections and new objects */
  int evaluating;
  struct header *header;
  struct known *known; /* by method number */
  char *data; /* the shared memory */
  char *control;
  size_t data_size, control_size;
  uint64_t *places; /* by block */
  uint32_t *next_blocks; /* by block: the block of its counters' next 8 bits */
  struct stream *streams;
  struct key *all_keys; /* tables of 2^n slots, each from slot 2^n on; older tables stay */
  struct selector *selectors;
  size_t streams_size, keys_size, known_size, selectors_size;
  uint64_t ring_mask;
  uint32_t streams_used;
  uint64_t switches, looks;
  uint64_t gc_start;
  uint64_t beats; /* events of the agent's own threads */
  uint64_t in_other_ractors_before;
  uint32_t stacks;
  uint32_t gc_method;
  struct program programs[MAX_SELECTORS + 1];
  int data_fd, control_fd;
};

#pragma GCC visibility push(hidden)

extern struct state state;

/*
 * A separate page that the kernel zeroes on fork. In a child that Ruby does not know
 * about, the hook is still installed, but the shared memory is not mapped.
 */
struct alive {
  uint64_t armed;
  uint64_t is_known; /* 0: this process was just forked, and state is its parent's */
};

extern struct alive *alive;
extern int is_forked; /* by a fork that Ruby does not know about */

/* Threads of the agent itself, whose calls are not traced. */
enum { MAX_OWN_THREADS = 64 };
extern VALUE own_threads[MAX_OWN_THREADS];
extern VALUE marker; /* marks the classes that the hook has seen */
extern ID attached_name, new_name;
extern VALUE nil_value;
extern uint64_t arming; /* number of armings; evaluations may belong to an earlier one */

#pragma GCC visibility pop

#endif
