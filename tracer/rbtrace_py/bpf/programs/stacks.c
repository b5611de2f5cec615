/*
 * The Ruby stack of the current task, walked in its own context: the thread stands
 * still meanwhile. Equal stacks are counted; a stack that is seen first since the
 * counts were taken goes up whole, to be named.
 *
 * Of each control frame goes up what a reader of memory has of it, too: iseq, pc,
 * method entry, flags. For a block, and for what else runs in another frame's
 * environment, the method entry is that one's.
 *
 * Counts are of an epoch, 0 or 1. To take them, the other one is begun: then nobody
 * changes them any more.
 *
 * When it is loaded it is given
 *   FSBASE_OFFSET, PID_OFFSET, TGID_OFFSET  in struct task_struct, from BTF
 *   EACH  1: every sample goes up, without frames if they went up in this epoch
 */
#include "loading.h"

#define FRAME_WORDS 8 /* of the largest control frame */
#define RECORD_WORDS 4
#define VALUE_WORDS 8192
#define EC_WORDS 16
#define MOST_STEPS 1024 /* frames, and environments around blocks */
#define MOST_HOPS 64

/* Marks of a stack. */
#define CUT 1        /* it is too deep: older frames are left out */
#define UNREADABLE 2 /* older frames could not be read */
#define EPOCH_SHIFT 2
#define GC_SHIFT 8

/* What is known of a process; stack_walker.py packs it. */
struct ruby {
  s64 tls;        /* of the word with the EC, from fs base; 0: not known */
  u64 gc_place;   /* word that tells of a collection; 0: not known */
  u64 gc_mask;
  u64 local;      /* VM_ENV_FLAG_LOCAL */
  u64 running;    /* up to 2.7: word with the thread that has the GVL */
  u32 ec_stack, ec_size, ec_cfp, ec_thread, ec_fiber; /* in words */
  u32 words;      /* of a control frame */
  u32 pc, sp, iseq, ep, jit; /* in words; jit == words: there is no such member */
  u32 has_zjit;   /* no pc of an innermost frame is up to date */
  u32 th_ec;      /* in bytes; of a thread that is found by its id */
  u32 imemo_mask, imemo_ment; /* flags & mask == ment: a method entry */
  u32 follows;    /* its children are walked, too */
  u32 th_ractor, ractor_ec; /* in bytes: a ractor, and in it the EC that has the GVL */
};

struct stack_key {
  u64 hash;
  u64 ids; /* tgid << 32 | tid */
  u64 thread; /* rb_thread_t */
  u64 marks;
  u64 fiber; /* rb_fiber_t */
};

struct head {
  struct stack_key key;
  u64 time; /* CLOCK_MONOTONIC, ns */
  u64 count; /* of the frames that follow, newest first */
};

/* One a processor: no tick comes during another. */
struct scratch {
  u64 env[4];
  /* In memory, so that the verifier does not tell apart what they were made of. */
  volatile u64 walked, hops, count, start, values_count;
  u64 ec[EC_WORDS];
  struct head head;
  u64 frames[MOST_FRAMES * FRAME_WORDS];
  u64 values[VALUE_WORDS];
};

static long (*output_record)(void *ring, void *data, u64 size,
                             u64 flags) = (void *)130;

#define EC_WORD(place) (scratch->ec[(place) & (EC_WORDS - 1)])
#define FRAME_WORD(at) (scratch->frames[(at) & (MOST_FRAMES * FRAME_WORDS - 1)])
#define VALUE(at) (scratch->values[(at) & (VALUE_WORDS - 1)])

static __always_inline u64 mixed(u64 hash, u64 word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
  return hash ^ hash >> 29;
}

/* The execution context of this task; 0 if there is none, or it is not known. */
static __always_inline u64 find_ec(struct ruby *ruby, u64 fsbase, u64 ids) {
  u64 ec = 0;
  if (ruby->tls) {
    read_user(&ec, sizeof ec, (void *)(fsbase + ruby->tls));
  } else {
    u64 *thread = LOOKUP(threads, &ids);
    if (!thread) {
      count_one(COUNTER_UNKNOWN_THREAD);
      return 0;
    }
    if (*thread)
      read_user(&ec, sizeof ec, (void *)(*thread + ruby->th_ec));
  }
  return ec;
}

static __always_inline u64 current_epoch(void) {
  u32 place = 0;
  u64 *epoch = LOOKUP(epoch, &place);
  return epoch ? *epoch & 1 : 0;
}

/* Has the thread the GVL? */
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

/* 0, or 1 + enum gc_mode (gc.c) of the collection that this thread does. */
static __always_inline u64 collecting(struct ruby *ruby, u64 thread, u64 ec) {
  u64 word = 0;
  if (!ruby->gc_place)
    return 0;
  read_user(&word, sizeof word, (void *)ruby->gc_place);
  if (!(word & ruby->gc_mask) || !is_runner(ruby, thread, ec))
    return 0;
  return (word & 3) + 1;
}

static __always_inline int walk(struct ruby *ruby, struct scratch *scratch,
                                u64 ids, u64 fsbase) {
  struct stack_key *key = &scratch->head.key;
  u64 ec = find_ec(ruby, fsbase, ids);
  u64 low, high, cfp, size, count, start, ep, hash = 0, values;
  u64 words = ruby->words;
  u64 local = ruby->local, *cell, one = 1;

  if (!ec) { /* a thread without a Ruby stack */
    count_one(COUNTER_NO_RUBY);
    return 0;
  }
  if (read_user(scratch->ec, sizeof scratch->ec, (void *)ec)) {
    count_one(COUNTER_UNREADABLE);
    return 0;
  }
  low = EC_WORD(ruby->ec_stack);
  if (!low) { /* the thread has not begun yet, or has ended */
    count_one(COUNTER_NO_RUBY);
    return 0;
  }
  high = low + 8 * EC_WORD(ruby->ec_size);
  cfp = EC_WORD(ruby->ec_cfp);
  if (cfp < low || cfp >= high || words < 4 || words > FRAME_WORDS) {
    count_one(COUNTER_UNREADABLE);
    return 0;
  }
  key->ids = ids;
  key->thread = EC_WORD(ruby->ec_thread);
  key->marks = collecting(ruby, key->thread, ec) << GC_SHIFT;
  key->marks |= current_epoch() << EPOCH_SHIFT;
  key->fiber = EC_WORD(ruby->ec_fiber);
  scratch->head.time = bpf_ktime_get_ns();

  count = (high - cfp) / (8 * words);
  if (count > MOST_FRAMES) {
    count = MOST_FRAMES;
    key->marks |= CUT;
  }
  size = count * words * 8;
  asm volatile("" : "+r"(size));
  if (size > sizeof scratch->frames)
    size = sizeof scratch->frames;
  if (read_user(scratch->frames, size, (void *)cfp)) {
    count_one(COUNTER_UNREADABLE);
    return 0;
  }

  /* From the oldest environment that is on the stack up to the newest value. */
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

  if (FRAME_WORD(ruby->iseq) &&
      (ruby->has_zjit || (ruby->jit < words && FRAME_WORD(ruby->jit))))
    FRAME_WORD(ruby->pc) = 0;
  scratch->walked = scratch->hops = 0;
  scratch->count = count;
  scratch->start = start;
  scratch->values_count = values < 2 ? 0 : values - 2; /* of the data words */
  ep = FRAME_WORD(ruby->ep);
#pragma clang loop unroll(disable)
  for (int step = 0; step < MOST_STEPS; step++) {
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
  key->hash = hash;
  scratch->head.count = scratch->walked;
  cell = LOOKUP(stacks, key);
  if (cell) {
    __sync_fetch_and_add(cell, 1);
    if (!AT_LOAD(EACH))
      return 0;
    scratch->head.count = 0;
  }
  size = sizeof scratch->head + scratch->head.count * RECORD_WORDS * 8;
  asm volatile("" : "+r"(size));
  if (size > sizeof scratch->head + MOST_FRAMES * RECORD_WORDS * 8)
    size = sizeof scratch->head;
  if (output_record((void *)AT_LOAD(ring), &scratch->head, size, 0) ||
      (!cell && UPDATE(stacks, key, &one) && !AT_LOAD(EACH)))
    count_one(COUNTER_LOST);
  return 0;
}

int on_tick(void *ctx) {
  u64 ids = bpf_get_current_pid_tgid(), task, fsbase = 0;
  u32 tgid = ids >> 32, place;
  struct ruby *ruby = LOOKUP(rubies, &tgid);
  struct scratch *scratch;
  if (!ruby)
    return 0;
  count_one(COUNTER_SEEN);
  place = bpf_get_smp_processor_id();
  scratch = LOOKUP(scratches, &place);
  if (!scratch)
    return 0;
  task = bpf_get_current_task();
  read_kernel(&fsbase, sizeof fsbase, (void *)(task + AT_LOAD(FSBASE_OFFSET)));
  return walk(ruby, scratch, ids, fsbase);
}

/* In the parent's context. A child has all that its parent has. */
int on_fork(struct bpf_raw_tracepoint_args *ctx) {
  u64 child = ctx->args[1], ids = bpf_get_current_pid_tgid(), *thread;
  u32 parent = ids >> 32, pid = 0, tgid = 0;
  struct ruby *ruby = LOOKUP(rubies, &parent);
  if (!ruby || !ruby->follows)
    return 0;
  read_kernel(&pid, sizeof pid, (void *)(child + AT_LOAD(PID_OFFSET)));
  read_kernel(&tgid, sizeof tgid, (void *)(child + AT_LOAD(TGID_OFFSET)));
  if (pid != tgid) /* a thread */
    return 0;
  if (UPDATE(rubies, &pid, ruby))
    count_one(COUNTER_NO_ROOM);
  thread = LOOKUP(threads, &ids);
  ids = (u64)pid << 32 | pid;
  if (thread && UPDATE(threads, &ids, thread))
    count_one(COUNTER_NO_ROOM);
  return 0;
}

/* Another program: nothing that was known is so any more. */
int on_exec(void *ctx) {
  u32 tgid = bpf_get_current_pid_tgid() >> 32;
  DELETE(rubies, &tgid);
  return 0;
}

int on_exit(void *ctx) {
  u64 ids = bpf_get_current_pid_tgid();
  u32 tgid = ids >> 32;
  if (!LOOKUP(rubies, &tgid))
    return 0;
  DELETE(threads, &ids);
  if (tgid == (u32)ids)
    DELETE(rubies, &tgid);
  return 0;
}
