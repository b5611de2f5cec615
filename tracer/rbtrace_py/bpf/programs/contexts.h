/*
 * Execution contexts: which thread of Ruby, and which of its fibers, a task runs.
 *
 *   FSBASE_OFFSET  in struct task_struct, from BTF
 *   threads        a map of rb_thread_t by the ids of a task, where no TLS tells
 */

/* A process and its Ruby. */
struct ruby {
  s64 tls;        /* from fs base: below 0 of the EC, above of the thread; 0: unknown */
  u64 gc_place;   /* word that tells of a collection; 0: not known */
  u64 gc_mask;
  u64 gc_count;   /* number of collections that have begun; 0: not known */
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
  u32 gvl_queue, gvl_node; /* in bytes: of a ractor and of a thread; 0: not known */
  u32 ractor_objspace, gc_flags; /* in bytes: of a ractor's own collector; 0: none */
  u64 queue;      /* up to 2.7: place of the GVL's queue */
  u64 zjit;       /* word that is not 0 while ZJIT has JITFrames; 0: it never has */
  u64 holder;     /* of the GVL: its place in a ractor; up to 2.7 its address */
};
CHECK_SIZE(ruby); CHECK(ruby, tls); CHECK(ruby, gc_place); CHECK(ruby, gc_mask);
CHECK(ruby, gc_count); CHECK(ruby, local); CHECK(ruby, running); CHECK(ruby, ec_stack);
CHECK(ruby, ec_size); CHECK(ruby, ec_cfp); CHECK(ruby, ec_thread);
CHECK(ruby, ec_fiber); CHECK(ruby, words); CHECK(ruby, pc); CHECK(ruby, sp);
CHECK(ruby, iseq); CHECK(ruby, ep); CHECK(ruby, jit); CHECK(ruby, has_zjit);
CHECK(ruby, th_ec); CHECK(ruby, imemo_mask); CHECK(ruby, imemo_ment);
CHECK(ruby, follows); CHECK(ruby, th_ractor); CHECK(ruby, ractor_ec);
CHECK(ruby, gvl_queue); CHECK(ruby, gvl_node); CHECK(ruby, ractor_objspace);
CHECK(ruby, gc_flags); CHECK(ruby, queue); CHECK(ruby, zjit); CHECK(ruby, holder);

static __always_inline u64 fsbase_of(u64 task) {
  u64 fsbase = 0;
  read_kernel(&fsbase, sizeof fsbase, (void *)(task + AT_LOAD(FSBASE_OFFSET)));
  return fsbase;
}

#define NOT_KNOWN 1

/* The execution context of this task; 0 if there is none, or NOT_KNOWN. */
static __always_inline u64 find_ec(struct ruby *ruby, u64 fsbase, u64 ids) {
  u64 word = 0;
  if (ruby->tls) {
    read_user(&word, sizeof word, (void *)(fsbase + ruby->tls));
  } else {
    u64 *thread = LOOKUP(threads, &ids);
    if (!thread)
      return NOT_KNOWN;
    word = *thread;
  }
  if (ruby->tls >= 0 && word &&
      read_user(&word, sizeof word, (void *)(word + ruby->th_ec)))
    return 0;
  return word;
}
