/*
 * Walks the Ruby stack of the current task in the task's own context, so that the
 * thread does not run meanwhile: at ticks of the processor's clock, and when the thread
 * leaves the CPU. Equal stacks are counted. A stack that was not seen since the counts
 * were read is sent to user space with its frames, to be named.
 *
 * For each control frame, iseq, pc, method entry and flags are sent. A block, and any
 * other code that runs in the environment of an outer frame, has the method entry of
 * the outer frame.
 *
 * While ZJIT of Ruby 4.1 is on, iseq and pc of a frame are stale if its jit_return is
 * not 0. Then the address of its JITFrame (zjit.h) is sent as iseq, and IN_JIT_FRAME as
 * pc. A JITFrame is never freed, so user space reads it.
 *
 * Counts belong to an epoch, 0 or 1. Before user space reads the counts of one epoch,
 * it starts the other, so that the counts it reads no longer change.
 *
 * The loader sets the numbers in tasks.h and contexts.h, and
 *   FILES_OFFSET, STACK_OFFSET, RAN_OFFSET (se.sum_exec_runtime)
 *                in struct task_struct, from BTF
 *   FDTABLE_OFFSET, FDS_OFFSET, INODE_OFFSET, INODE_MODE_OFFSET
 *                in struct files_struct, fdtable, file and inode
 *                STACK_OFFSET 0: a helper finds a task's registers (Linux 5.15)
 *   EACH         samples of at least this weight are sent to user space, without frames
 *                if those were sent in this epoch; weights of other samples are summed.
 *                0: all weights are summed
 *   WEIGHING     the weight of a stack: Weighing of model/stack_walk.py
 *   LEAST        minimum ns of a time off the CPU to count
 *   PERIOD       average ns between two ticks of a processor
 *   KERNEL       1: kernel frames are part of a stack, too
 */
#include "loading.h"
#include "tasks.h"
#include "contexts.h"

#define FRAME_WORDS 8 /* of the largest control frame */
#define RECORD_WORDS 4
#define VALUE_WORDS 8192
#define EC_WORDS 16
/*
 * A step is a frame, or an environment around a block. With may_goto (MAY_GOTO, Linux
 * 6.9) the verifier checks a few steps. Otherwise it checks every step, and refuses a
 * program with more than 8,192 jumps on a path (a step has 8), or with more than a
 * million instructions to check. on_switch has 800,000 with 576 steps if clang 14
 * compiles it, and with 256 if clang 19 does.
 */
#if MAY_GOTO
#define MOST_STEPS 1024
#define STEPS ; may_go_on() && scratch->steps++ < MOST_STEPS;
#else
#if __clang_major__ > 14
#define MOST_STEPS 256
#else
#define MOST_STEPS 576
#endif
#define STEPS int step = 0; step < MOST_STEPS; step++
#endif
#define MOST_HOPS 64
#define IN_JIT_FRAME 1 /* in place of a pc */
#define C_FRAME 1      /* in jit_return */
#define NOT_READ 8     /* in place of a JITFrame's address */
#define PAGE 4096
#define MOST_ABSENT 3 /* words of the newest control frame: pc, sp, iseq */

/* Marks of a stack. */
#define CUT 1        /* too deep: older frames are omitted */
#define UNREADABLE 2 /* older frames could not be read */
#define EPOCH_SHIFT 2
#define EPOCH (1 << EPOCH_SHIFT)
#define GC_SHIFT 8
#define OFF_CPU (1ULL << 16)
#define READY (1ULL << 17)      /* runnable: another thread has the CPU */
#define IN_GVL_QUEUE (1ULL << 18)
#define NO_SIGNALS (1ULL << 19) /* TASK_UNINTERRUPTIBLE: usually waits for a disk */
#define FILE_TYPE_SHIFT 20      /* S_IFMT >> 12 of the descriptor it waits for */
#define STOPPED (1ULL << 24)    /* by a signal or a debugger */
#define CALL_SHIFT 32           /* 1 + number of the system call */
#define OFF_MARKS (~0ULL << 16)

#define GC_MODE 3 /* bits of the collector's flags: enum gc_mode (gc.c) */
#define GC_MARKING 1
#define TASK_UNINTERRUPTIBLE 2
#define TASK_STOPPED_OR_TRACED 0xc
#define TASK_DEAD 0x80
#define POLL 7
#define PPOLL 271
#define MOST_FDS (1 << 20)
#define MOST_CALLS 1024
#define KERNEL_STACK 16384
#define USER_MODE 3 /* bits of cs */

struct stack_key {
  u64 hash;
  u64 ids; /* tgid << 32 | tid */
  u64 thread; /* rb_thread_t */
  u64 marks;
  u64 fiber; /* rb_fiber_t */
};
CHECK_SIZE(stack_key); CHECK(stack_key, hash); CHECK(stack_key, ids);
CHECK(stack_key, thread); CHECK(stack_key, marks); CHECK(stack_key, fiber);

struct head {
  struct stack_key key;
  u64 time; /* CLOCK_MONOTONIC, ns */
  u64 weight; /* 0: only to be named */
  u32 count; /* of the frames that follow, newest first */
  u32 kernel_count; /* of the kernel's addresses that follow them, newest first */
  u64 collection; /* collection() at the time of the walk */
};
CHECK_SIZE(head); CHECK(head, time); CHECK(head, weight); CHECK(head, count);
CHECK(head, kernel_count); CHECK(head, collection);

/* A thread's current or last time off the CPU; the key of a past one lacks OFF_CPU. */
struct interval {
  struct stack_key key; /* its stack; hash 0: unknown */
  u64 since; /* CLOCK_MONOTONIC, ns */
  u64 ran; /* ns that the thread was on CPUs before */
  u64 waiters, waited; /* number for its GVL, and the sum of their ns until since */
};
CHECK_SIZE(interval); CHECK(interval, since); CHECK(interval, ran);
CHECK(interval, waiters); CHECK(interval, waited);

/* One per processor: ticks and switches do not interrupt each other. */
struct scratch {
  u64 env[4];
  /* Volatile, so that the verifier does not track how their values were computed. */
  volatile u64 steps, walked, hops, count, start, values_count;
  u64 ec[EC_WORDS];
  u64 users; /* for events.c: number of runs that use it or try to */
  u64 weight; /* of an event */
  volatile u64 waiters; /* for queue_length; volatile like steps */
  struct head head;
  u64 frames[MOST_FRAMES * FRAME_WORDS];
  u64 values[VALUE_WORDS];
};
CHECK_SIZE(scratch);

/* Outcome of a walk. */
enum outcome { WALKED, NO_RUBY, UNKNOWN, FAILED };

static long (*output_record)(void *ring, void *data, u64 size,
                             u64 flags) = (void *)130;
static long (*stack_of)(void *ctx, void *to, u32 size, u64 flags) = (void *)67;
static void *(*current_task)(void) = (void *)158;
static void *(*registers_of)(void *task) = (void *)175;

/* may_goto: return false at the kernel's limit. bcc's LLVM lacks this instruction. */
static __always_inline bool may_go_on(void) {
  asm volatile goto("1: .byte 0xe5, 0;"
                    ".long ((%l[enough] - 1b - 8) / 8) & 0xffff; .short 0"
                    :
                    :
                    :
                    : enough);
  return true;
enough:
  return false;
}

#define EC_WORD(place) (scratch->ec[(place) & (EC_WORDS - 1)])
#define FRAME_WORD(at) (scratch->frames[(at) & (MOST_FRAMES * FRAME_WORDS - 1)])
#define VALUE(at) (scratch->values[(at) & (VALUE_WORDS - 1)])

static __always_inline u64 mixed(u64 hash, u64 word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
  return hash ^ hash >> 29;
}

static __always_inline u64 current_epoch(void) {
  u32 place = 0;
  u64 *epoch = LOOKUP(epoch, &place);
  return epoch ? *epoch & 1 : 0;
}

/* Return whether the thread holds the GVL. */
static __always_inline bool is_runner(struct ruby *ruby, u64 thread, u64 ec) {
  u64 place = ruby->running, runner = 0;
  if (!place) {
    read_user(&place, sizeof place, (void *)(thread + ruby->th_ractor));
    place += ruby->ractor_ec;
    thread = ec;
  }
  read_user(&runner, sizeof runner, (void *)place);
  return runner == thread;
}

/* Return 0, or 1 + enum gc_mode (gc.c) of this thread's collection in progress. */
static __always_inline u64 collecting(struct ruby *ruby, u64 thread, u64 ec) {
  u64 word = 0, place = ruby->gc_place;
  if (!place)
    return 0;
  if (ruby->ractor_objspace) {
    read_user(&place, sizeof place, (void *)(thread + ruby->th_ractor));
    read_user(&place, sizeof place, (void *)(place + ruby->ractor_objspace));
    place += ruby->gc_flags;
  }
  read_user(&word, sizeof word, (void *)place);
  if (!(word & ruby->gc_mask) || !is_runner(ruby, thread, ec))
    return 0;
  return (word & GC_MODE) + 1;
}

/*
 * Identify the state of the collector. While it is unchanged, equal words at an address
 * mean the same code: code is freed or moved only by a collection whose marking begins
 * after the code was read. A collection is counted at its start, and may mark for long
 * while the program runs.
 */
static __always_inline u64 collection(struct ruby *ruby) {
  u64 count = 0, word = 0;
  if (!ruby->gc_count)
    return 0;
  read_user(&count, sizeof count, (void *)ruby->gc_count);
  read_user(&word, sizeof word, (void *)ruby->gc_place);
  return count << 2 | ((word & GC_MODE) == GC_MARKING) << 1 | !!(word & ruby->gc_mask);
}

/* Put the current Ruby thread into the head's key; return WALKED if it has a stack. */
static __always_inline int begin(struct ruby *ruby, struct scratch *scratch, u64 ids,
                                 u64 task) {
  struct stack_key *key = &scratch->head.key;
  u64 ec = find_ec(ruby, fsbase_of(task), ids), stack, cfp;

  key->ids = ids;
  key->hash = key->thread = key->marks = key->fiber = 0;
  scratch->head.count = scratch->head.kernel_count = 0;
  if (!ec) /* a thread without a Ruby stack */
    return NO_RUBY;
  if (ec == NOT_KNOWN)
    return UNKNOWN;
  if (read_user(scratch->ec, sizeof scratch->ec, (void *)ec))
    return FAILED;
  stack = EC_WORD(ruby->ec_stack);
  cfp = EC_WORD(ruby->ec_cfp);
  /* The thread has no frame yet, or has ended. */
  if (!stack || !cfp || cfp == stack + 8 * EC_WORD(ruby->ec_size))
    return NO_RUBY;
  key->thread = EC_WORD(ruby->ec_thread);
  key->marks = collecting(ruby, key->thread, ec) << GC_SHIFT;
  key->fiber = EC_WORD(ruby->ec_fiber);
  return WALKED;
}

/*
 * Put the address of its JITFrame in place of the iseq of each frame of ZJIT. The word
 * below jit_return's target, in the native stack, is that address. A C function has 1 in
 * jit_return, so its iseq becomes 0, and an unreadable word becomes NOT_READ. Without
 * may_goto, this loop and the loop of walk together exceed the verifier's limits: then
 * return false if ZJIT is on.
 */
static __always_inline bool take_jit_frames(struct ruby *ruby, struct scratch *scratch,
                                            u64 words, u64 jit, u64 count) {
  u64 entry = 0;
  if (ruby->zjit)
    read_user(&entry, sizeof entry, (void *)ruby->zjit);
#if MAY_GOTO
  scratch->steps = scratch->walked = 0;
  scratch->count = entry ? count : 0;
#pragma clang loop unroll(disable)
  for (STEPS) {
    u64 base = scratch->walked * words, place;
    if (scratch->walked >= scratch->count)
      break;
    place = FRAME_WORD(base + jit);
    if (place) {
      read_user(scratch->env, 8, (void *)(place - 8)); /* 0 if it fails */
      if (place != C_FRAME && !scratch->env[0])
        scratch->env[0] = NOT_READ;
      FRAME_WORD(base + ruby->iseq) = scratch->env[0];
      FRAME_WORD(base + ruby->pc) = IN_JIT_FRAME;
    }
    scratch->walked = scratch->walked + 1;
  }
  return true;
#else
  return !entry;
#endif
}

/*
 * Read the control frames. A JIT does not write pc and sp of a frame that it pushes, nor
 * ZJIT of Ruby 4.1 the iseq of a frame with a JITFrame. If these are the last words of a
 * page, and the rest of the page was never written, the page does not exist. Then put 0
 * in their place.
 */
static __always_inline bool read_frames(struct ruby *ruby, struct scratch *scratch,
                                        u64 cfp, u64 size, u64 jit) {
  u64 absent = -cfp & (PAGE - 1);
  if (!read_user(scratch->frames, size, (void *)cfp))
    return true;
  if (absent > 8 * MOST_ABSENT || absent >= size)
    return false;
  FRAME_WORD(ruby->pc) = FRAME_WORD(ruby->sp) = FRAME_WORD(ruby->iseq) = 0;
  size -= absent;
  asm volatile("" : "+r"(size), "+r"(absent));
  if (size > sizeof scratch->frames)
    size = sizeof scratch->frames;
  absent &= 8 * MOST_ABSENT;
  if (read_user((void *)scratch->frames + absent, size, (void *)(cfp + absent)))
    return false;
  return absent <= 8 * ruby->iseq || (ruby->zjit && FRAME_WORD(jit) > C_FRAME);
}

/* After begin: read the frames and complete the key. */
static __always_inline int walk(struct ruby *ruby, struct scratch *scratch) {
  struct stack_key *key = &scratch->head.key;
  u64 low, high, cfp, size, count, start, ep, hash, values;
  u64 words = ruby->words, jit = ruby->jit;
  u64 local = ruby->local;
  bool has_jit_word = jit < words;

  scratch->head.collection = collection(ruby);
  hash = mixed(0, scratch->head.collection);
  low = EC_WORD(ruby->ec_stack);
  high = low + 8 * EC_WORD(ruby->ec_size);
  cfp = EC_WORD(ruby->ec_cfp);
  if (cfp < low || cfp >= high || words < 4 || words > FRAME_WORDS)
    return FAILED;

  count = (high - cfp) / (8 * words);
  if (count > MOST_FRAMES) {
    count = MOST_FRAMES;
    key->marks |= CUT;
  }
  size = count * words * 8;
  asm volatile("" : "+r"(size));
  if (size > sizeof scratch->frames)
    size = sizeof scratch->frames;
  asm volatile("" : "+r"(jit));
  if (!read_frames(ruby, scratch, cfp, size, jit))
    return FAILED;

  /* Read values from the oldest environment on the stack to the newest value. */
  start = low;
  ep = FRAME_WORD((count - 1) * words + ruby->ep);
  if (ep > low + 16 && ep < high && key->marks & CUT)
    start = ep - 16;
  values = FRAME_WORD(ruby->sp) - start;
  if (values > cfp - start)
    values = cfp - start;
  asm volatile("" : "+r"(values));
  if (values > sizeof scratch->values)
    values = sizeof scratch->values;
  if (values && read_user(scratch->values, values, (void *)start))
    values = 0;
  values >>= 3;

  /*
   * Since version 19, clang omits FRAME_WORD's mask if a comparison implies it. The
   * verifier has lost this bound by then, and rejects the program.
   */
  asm volatile("" : "+r"(jit));
  if (FRAME_WORD(ruby->iseq) && (ruby->has_zjit || (has_jit_word && FRAME_WORD(jit))))
    FRAME_WORD(ruby->pc) = 0;
  if (!take_jit_frames(ruby, scratch, words, jit, count))
    return FAILED;
  scratch->steps = scratch->walked = scratch->hops = 0;
  scratch->count = count;
  scratch->start = start;
  scratch->values_count = values < 2 ? 0 : values - 2; /* of the data words */
  ep = FRAME_WORD(ruby->ep);
#pragma clang loop unroll(disable)
  for (STEPS) {
    u64 i = scratch->walked, hops = scratch->hops, base = i * words;
    u64 at = ((ep - scratch->start) >> 3) - 2, data, link, flags, kind = 0;
    if (i >= scratch->count)
      break;
    if (at < scratch->values_count) {
      data = VALUE(at);
      link = VALUE(at + 1);
      flags = VALUE(at + 2);
    } else {
      if (read_user(scratch->env, 24, (void *)(ep - 16)))
        break;
      data = scratch->env[0];
      link = scratch->env[1];
      flags = scratch->env[2];
    }
    if (!hops)
      scratch->env[3] = flags;
    if (!(flags & local)) {
      if (data && read_user(&kind, sizeof kind, (void *)data))
        break;
      if ((kind & ruby->imemo_mask) != ruby->imemo_ment && hops < MOST_HOPS) {
        scratch->hops = hops + 1;
        ep = link & ~3ULL;
        continue;
      }
    }
    flags = scratch->env[3];
    ep = FRAME_WORD(base + ruby->iseq);
    kind = FRAME_WORD(base + ruby->pc);
    hash = mixed(mixed(mixed(hash, ep + flags), kind), data);
    at = i * RECORD_WORDS;
    FRAME_WORD(at) = ep;
    FRAME_WORD(at + 1) = kind;
    FRAME_WORD(at + 2) = data;
    FRAME_WORD(at + 3) = flags;
    scratch->walked = i + 1;
    scratch->hops = 0;
    ep = FRAME_WORD(base + words + ruby->ep);
  }
  if (scratch->walked < scratch->count)
    key->marks |= UNREADABLE;
  key->hash = hash | 1;
  scratch->head.count = scratch->walked;
  return WALKED;
}

/* Return whether a sample is sent to user space individually. */
static __always_inline bool goes_up(u64 weight) {
  return AT_LOAD(EACH) && weight >= AT_LOAD(EACH);
}

/* After walk, in kernel mode: add the kernel frames, which are part of the key. */
static __always_inline void add_kernel_frames(void *ctx, struct scratch *scratch) {
  struct head *head = &scratch->head;
  u64 start = scratch->walked * RECORD_WORDS, hash = head->key.hash;
  s64 size;
  if (!AT_LOAD(KERNEL) || !hash || start > MOST_FRAMES * RECORD_WORDS)
    return;
  size = stack_of(ctx, scratch->frames + start, MOST_KERNEL_FRAMES * 8, 0);
  if (size <= 0) {
    count_one(COUNTER_NO_KERNEL_STACK);
    return;
  }
  count(COUNTER_KERNEL_STACK_CUT, size >> 3 == MOST_KERNEL_FRAMES);
  head->count = scratch->walked;
  head->kernel_count = size >> 3;
  scratch->start = start;
  scratch->count = size >> 3;
#pragma clang loop unroll(disable)
  for (u64 i = 0; i < MOST_KERNEL_FRAMES; i++) {
    if (i >= scratch->count)
      break;
    hash = mixed(hash, FRAME_WORD(scratch->start + i));
  }
  head->key.hash = hash | 1;
}

/* Count the walked stack; send its frames unless they were sent in this epoch. */
static __always_inline void tally(struct scratch *scratch, u64 weight, u64 epoch) {
  struct head *head = &scratch->head;
  u64 size, *cell;

  head->key.marks = (head->key.marks & ~(u64)EPOCH) | epoch << EPOCH_SHIFT;
  head->weight = weight;
  cell = LOOKUP(stacks, &head->key);
  if (goes_up(weight))
    weight = 0;
  else
    head->weight = 0;
  if (cell) {
    /* LLVM turns an addition of 0 into an atomic OR, which requires Linux 5.12. */
    if (weight)
      __sync_fetch_and_add(cell, weight);
    head->count = 0;
  }
  size = sizeof *head + head->count * RECORD_WORDS * 8;
  if (AT_LOAD(KERNEL) && head->count)
    size += head->kernel_count * 8;
  asm volatile("" : "+r"(size));
  if (size > sizeof *head + (MOST_FRAMES * RECORD_WORDS + MOST_KERNEL_FRAMES) * 8)
    size = sizeof *head;
  if ((head->count || head->weight) &&
      output_record((void *)AT_LOAD(ring), head, size, NO_WAKEUP)) {
    count_one(COUNTER_LOST);
    return;
  }
  head->count = 0; /* the frames were sent */
  /* Weight 0: an interval begins. Its end counts the loss if there is still no room. */
  if (!cell && UPDATE(stacks, &head->key, &weight) && weight)
    count_one(COUNTER_NO_ROOM);
}

/* Return the sum of the ns that waiters waited for an off-CPU thread's GVL. */
static __always_inline u64 waited_since(struct interval *interval, u64 now) {
  return now > interval->since ? (now - interval->since) * interval->waiters : 0;
}

/* Count a time off the CPU, whose stack was walked at its start. */
static __always_inline void tally_interval(struct interval *interval, u64 now) {
  u64 weight = now - interval->since, *cell;
  struct head head = {interval->key, now, weight, 0};

  if (AT_LOAD(WEIGHING) == GVL_TIME)
    head.weight = weight = interval->waited + waited_since(interval, now);
  head.key.marks = (head.key.marks & ~(u64)EPOCH) | current_epoch() << EPOCH_SHIFT;
  if (goes_up(weight)) {
    if (output_record((void *)AT_LOAD(ring), &head, sizeof head, NO_WAKEUP))
      count_one(COUNTER_LOST);
    return;
  }
  cell = LOOKUP(stacks, &head.key);
  if (cell)
    __sync_fetch_and_add(cell, weight);
  else if (UPDATE(stacks, &head.key, &weight))
    count_one(COUNTER_NO_ROOM);
}

static __always_inline struct scratch *own_scratch(void) {
  u32 place = bpf_get_smp_processor_id();
  return LOOKUP(scratches, &place);
}

/* After begin: walk the current task's stack, and count the outcome. */
static __always_inline int walk_task(struct ruby *ruby, struct scratch *scratch,
                                     int outcome) {
  count_one(COUNTER_SEEN);
  if (outcome == WALKED)
    outcome = walk(ruby, scratch);
  if (outcome == NO_RUBY)
    count_one(COUNTER_NO_RUBY);
  if (outcome == UNKNOWN)
    count_one(COUNTER_UNKNOWN_THREAD);
  if (outcome == FAILED)
    count_one(COUNTER_UNREADABLE);
  return outcome;
}

#ifndef WALK_ONLY /* the rest runs at ticks, switches, forks, execs, and exits */
/* A thread gets a CPU. */
static __always_inline void arrive(u64 ids, u64 now) {
  struct interval *interval = LOOKUP(intervals, &ids);
  if (!interval)
    return;
  if (interval->key.marks & OFF_CPU && now - interval->since >= AT_LOAD(LEAST))
    tally_interval(interval, now);
  interval->key.marks &= ~OFF_MARKS;
  interval->since = now;
}

/* Return a task's ns on CPUs; exact when it leaves one, else up to a clock tick old. */
static __always_inline u64 ran_of(u64 task) {
  u64 ran = 0;
  read_kernel(&ran, sizeof ran, (void *)(task + AT_LOAD(RAN_OFFSET)));
  return ran;
}

/*
 * The thread has a CPU: if its interval is still open, a switch was missed. On Linux
 * 6.18 under KVM, sched_switch sometimes does not fire when the thread replaces an idle
 * task; ftrace misses the same switches. Its run time since shows when it got the CPU.
 */
static __always_inline void note_missed_switch(u64 ids, u64 task, u64 now) {
  struct interval *interval = LOOKUP(intervals, &ids);
  u64 ran;
  if (!interval || !(interval->key.marks & OFF_CPU))
    return;
  ran = ran_of(task) - interval->ran;
  arrive(ids, ran < now - interval->since ? now - ran : interval->since);
}

#include "gvl.h"

/* ctx: struct bpf_perf_event_data; its first member has the interrupted registers. */
int on_tick(struct pt_regs *ctx) {
  u64 ids = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
  u64 weight = AT_LOAD(PERIOD);
  u32 tgid = ids >> 32;
  struct ruby *ruby = LOOKUP(rubies, &tgid);
  struct scratch *scratch = own_scratch();
  int outcome;
  if (!ruby || !scratch)
    return 0;
  outcome = begin(ruby, scratch, ids, bpf_get_current_task());
  if (AT_LOAD(WEIGHING) == GVL_TIME) {
    /* If a thread releases the GVL during an on-CPU interval, its time with the GVL is
       unknown. So a tick counts a whole period; switches count no time on the CPU. */
    note_missed_switch(ids, bpf_get_current_task(), now);
    if (outcome == WALKED)
      weight *= waiters_of(ruby, scratch);
  }
  if (!weight || walk_task(ruby, scratch, outcome) != WALKED)
    return 0;
  if (AT_LOAD(KERNEL) && !(ctx->cs & USER_MODE))
    add_kernel_frames(ctx, scratch);
  scratch->head.time = now;
  if (AT_LOAD(WEIGHING) == ALL_TIME)
    note_missed_switch(ids, bpf_get_current_task(), now);
  tally(scratch, weight, current_epoch());
  return 0;
}

/* Return S_IFMT >> 12 of a descriptor; 0 if it does not exist. */
static __always_inline u64 file_type(u64 task, u64 fd) {
  u64 place = 0;
  u16 mode = 0;
  read_kernel(&place, 8, (void *)(task + AT_LOAD(FILES_OFFSET)));
  read_kernel(&place, 8, (void *)(place + AT_LOAD(FDTABLE_OFFSET)));
  read_kernel(&place, 8, (void *)(place + AT_LOAD(FDS_OFFSET)));
  if (read_kernel(&place, 8, (void *)(place + 8 * fd)) || !place)
    return 0;
  read_kernel(&place, 8, (void *)(place + AT_LOAD(INODE_OFFSET)));
  read_kernel(&mode, 2, (void *)(place + AT_LOAD(INODE_MODE_OFFSET)));
  return mode >> 12;
}

/* Return the marks of a task's system call, and of its file argument's type. */
static __always_inline u64 call_marks(u64 task) {
  u64 registers, fd, si_di_call[3];
  int polled = -1;
  if (AT_LOAD(STACK_OFFSET)) {
    read_kernel(&registers, 8, (void *)(task + AT_LOAD(STACK_OFFSET)));
    registers += KERNEL_STACK - sizeof(struct pt_regs);
  } else {
    registers = (u64)registers_of(current_task());
  }
  registers += __builtin_offsetof(struct pt_regs, si);
  if (read_kernel(si_di_call, sizeof si_di_call, (void *)registers) ||
      si_di_call[2] >= MOST_CALLS)
    return 0;
  fd = si_di_call[1];
  if (si_di_call[2] == POLL || si_di_call[2] == PPOLL) {
    if (si_di_call[0] == 1)
      read_user(&polled, sizeof polled, (void *)fd);
    fd = (u64)(s64)polled;
  }
  fd = fd < MOST_FDS ? file_type(task, fd) : 0;
  return (si_di_call[2] + 1) << CALL_SHIFT | fd << FILE_TYPE_SHIFT;
}

/* The current thread leaves its CPU; state: the kernel's, 0: runnable. */
static __always_inline void leave(struct bpf_raw_tracepoint_args *ctx,
                                  struct ruby *ruby, u64 ids, u32 state) {
  struct scratch *scratch = own_scratch();
  u64 now = bpf_ktime_get_ns();
  u64 task = ctx->args[1];
  struct interval new;
  int outcome;
  if (!scratch)
    return;
  note_missed_switch(ids, task, now);
  outcome = begin(ruby, scratch, ids, task);
  if (AT_LOAD(WEIGHING) == GVL_TIME && outcome == NO_RUBY)
    wait_for_holder(ruby, scratch, ids, ANY_QUEUE, now);
  if (AT_LOAD(WEIGHING) == GVL_TIME && outcome == WALKED &&
      !leaves_with_gvl(ruby, scratch, ids, now))
    return;
  outcome = walk_task(ruby, scratch, outcome);
  if (outcome == NO_RUBY || outcome == UNKNOWN) {
    DELETE(intervals, &ids);
    return;
  }
  if (outcome == FAILED)
    scratch->head.key.hash = 0;
  scratch->head.time = now;
  add_kernel_frames(ctx, scratch);
  scratch->head.key.marks |= OFF_CPU;
  if (!state)
    scratch->head.key.marks |= READY;
  else if (state & TASK_STOPPED_OR_TRACED)
    scratch->head.key.marks |= STOPPED;
  else if (is_queued(ruby, scratch->head.key.thread))
    scratch->head.key.marks |= IN_GVL_QUEUE;
  else
    scratch->head.key.marks |= call_marks(task);
  if (state & TASK_UNINTERRUPTIBLE)
    scratch->head.key.marks |= NO_SIGNALS;
  tally(scratch, 0, current_epoch());
  new.key = scratch->head.key;
  new.since = now;
  new.ran = ran_of(task);
  new.waiters = new.waited = 0;
  if (UPDATE(intervals, &ids, &new))
    count_one(COUNTER_NO_ROOM);
  else if (AT_LOAD(WEIGHING) == GVL_TIME)
    count_waiters(ruby, scratch, ids);
}

#if SWITCHES /* compiling it takes as long as everything else */
/* args: preempt, prev, next, and since 5.19 prev's state; prev is still current. */
int on_switch(struct bpf_raw_tracepoint_args *ctx) {
  u64 ids = ids_of(ctx->args[2]);
  u32 tgid = ids >> 32, state;
  struct ruby *ruby = tgid ? LOOKUP(rubies, &tgid) : 0;
  if (ruby)
    arrive(ids, bpf_ktime_get_ns());
  ids = bpf_get_current_pid_tgid();
  tgid = ids >> 32;
  ruby = tgid ? LOOKUP(rubies, &tgid) : 0;
  if (!ruby)
    return 0;
  state = leaving_state(ctx);
  if (!(state & TASK_DEAD))
    leave(ctx, ruby, ids, state);
  return 0;
}
#endif

/* Runs in the parent's context. A child inherits its parent's entries. */
int on_fork(struct bpf_raw_tracepoint_args *ctx) {
  u64 ids = bpf_get_current_pid_tgid(), child, *thread;
  u32 parent = ids >> 32, pid;
  struct ruby *ruby = LOOKUP(rubies, &parent), copy;
  if (!ruby || !ruby->follows)
    return 0;
  child = ids_of(ctx->args[1]);
  pid = (u32)child;
  if (pid != child >> 32) /* a thread */
    return 0;
  copy = *ruby;
  if (UPDATE(rubies, &pid, &copy))
    count_one(COUNTER_NO_ROOM);
  thread = LOOKUP(threads, &ids);
  if (thread && UPDATE(threads, &child, thread))
    count_one(COUNTER_NO_ROOM);
  return 0;
}

/*
 * The process runs another program, so all entries are invalid. The calling thread
 * takes over the main thread's id. Its old id, args[1], has no exit event.
 */
int on_exec(struct bpf_raw_tracepoint_args *ctx) {
  u64 ids = bpf_get_current_pid_tgid(), before;
  u32 tgid = ids >> 32;
  before = (u64)tgid << 32 | (u32)ctx->args[1];
  DELETE(rubies, &tgid);
  DELETE(threads, &before);
  DELETE(intervals, &before);
  DELETE(intervals, &ids);
  return 0;
}

/* A thread exits; other threads of its process may exit after the main thread. */
int on_exit(void *ctx) {
  u64 ids = bpf_get_current_pid_tgid();
  u32 tgid = ids >> 32;
  DELETE(threads, &ids);
  DELETE(intervals, &ids);
  if (tgid == (u32)ids)
    DELETE(rubies, &tgid);
  return 0;
}
#endif
