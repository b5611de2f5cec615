/* What only the hook can write: all that a decision depends on. */
#ifndef TRACEPOINT_HOOK_STATE_H
#define TRACEPOINT_HOOK_STATE_H

#include "cruby.h"
#include "shared.h"

/* As agent/arming.rb packs it; selectors follow. */
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
  uint16_t wants;        /* enum wants: what its expressions need; 0: it has none */
  uint32_t owner_length; /* 0: any */
  ID id;                 /* 0: any */
  char owner[];          /* padded to 8 */
};

enum wants { WANTS_SELF = 1, WANTS_BINDING = 2, WANTS_PLACE = 4 };

/* A selector's expressions; programs are numbered as selectors are, from 1. */
struct program {
  uint8_t wants;
  uint8_t late; /* how often in a row they took too long; no more once it is MAX_LATE */
};

enum { MAX_SELECTORS = 1024, MAX_LATE = 3 };

/* A call that has not returned. */
struct call {
  uint64_t key; /* orders frames: a callee's is lower than its caller's */
  uint64_t start;
  uint64_t child; /* ticks in calls below */
  uint64_t cpu;
  uint64_t at; /* what to rewind the ring to */
  uint32_t lost, dropped;
  uint32_t method;
  uint16_t target; /* that told of it; of the global hook always the same number */
  uint8_t is_c;
  uint8_t untold;
  uint8_t left_out; /* its entry found no room: neither it nor what it calls is told */
};

enum { MAX_DEPTH = 16384, NO_TARGET = 0 /* targets are numbered from 1 */ };

struct stream {
  /* A cache line of what each event of a table reads. */
  const char *ec;
  const char *vm_stack; /* with ec: a dead fiber's place may be another's */
  struct call *calls;
  uint32_t *active; /* by method: how many open calls are of it */
  uint32_t depth;
  int ignored;
  uint32_t waiting; /* counter of the last duration, which is yet to be counted; 0: none */
  uint32_t owed; /* open calls whose entries stand in the ring, and whose returns will */
  struct shared_stream *shared;
  struct record *ring;
  /* Of rings. */
  uint64_t written, published, tail;
  union {
    struct {
      uint32_t lost;   /* since the last LOST record */
      uint32_t untold; /* no record says yet whose stack it is now */
    };
    uint64_t behind; /* either of them */
  };
  uint64_t dropped; /* in all */
  const uint64_t *tail_of_reader;
  uint32_t stack;
  uint32_t tid;
  uint64_t stamp; /* when it was last switched to */
  VALUE thread;
} __attribute__((aligned(64)));

/* Half a cache line. */
struct key {
  VALUE owner;
  uint64_t id_and_kind; /* 0: free */
  uint32_t method;
  uint8_t selected;
  uint8_t of_class; /* a method of classes or modules: who it is called on counts */
  uint16_t program; /* 0: none */
} __attribute__((aligned(32)));

/* A method by its number; definer: as owner, but where it is defined. */
struct known {
  VALUE owner;
  uint64_t id_and_kind;
  VALUE definer;
};

/* Of which method and part of its histogram a block is; block 0: of none */
struct slot {
  uint32_t key; /* method << PART_BITS | part */
  uint32_t block;
};

/* A part and a block in one word, too. */
enum { PART_BITS = 11, BLOCK_BITS = 21 };

/* Values of a selector's expressions, as TEXT records hold them. */
enum { MAX_VALUES = 1200 };

struct values {
  uint32_t size;
  uint8_t bytes[MAX_VALUES];
};

/* The configuration ends with what reads a method from a frame; what each event of a table
   needs besides stands behind it, in two cache lines. */
struct state {
  struct config config;
  struct stream *current __attribute__((aligned(64)));
  struct key *keys; /* the newest, by hash */
  unsigned keys_shift;
  uint32_t to_check, to_verify; /* events, and methods read */
  int has_offsets, sites, selecting;
  struct shared_method *methods;
  uint8_t (*blocks)[BLOCK_COUNTERS];
  struct slot *slots; /* blocks, found by hash */
  uint32_t slots_shift, bucket_bits;
  uint32_t methods_used, blocks_used;
  hook_function hook;
  hook_function inner; /* of collections and new objects */
  int evaluating;
  struct header *header;
  struct known *known; /* by number of the method */
  char *data; /* the shared memory */
  char *control;
  size_t data_size, control_size;
  uint64_t *places; /* by block */
  uint32_t *next_blocks; /* by block: where its counters go on */
  struct stream *streams;
  struct key *all_keys; /* tables of 2^n slots from slot 2^n on: the older ones stay */
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
 * On a page of its own, which a fork wipes: in a child that nobody told Ruby
 * about, the hook is still there and the memory is not.
 */
struct alive {
  uint64_t armed;
  uint64_t is_known; /* 0: a fork made this process, and state is its parent's */
};

extern struct alive *alive;
extern int is_forked; /* by a fork that Ruby was not told of */

/* Threads of the agent itself, whose calls are no one's business. */
enum { MAX_OWN_THREADS = 64 };
extern VALUE own_threads[MAX_OWN_THREADS];
extern VALUE marker; /* marks the classes that were seen */
extern ID attached_name, new_name;
extern VALUE nil_value;
extern uint64_t arming; /* counts; what was under way may be of an earlier one */

#pragma GCC visibility pop

#endif
