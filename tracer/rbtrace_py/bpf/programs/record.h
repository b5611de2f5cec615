/*
 * Where a value goes: a dense histogram a series, or, with a key or many
 * series, a count a group and only those buckets that were hit.
 *
 *   BY       0 no key, 1 a number, 2 a text
 *   DENSE    1: one array of BUCKETS a series
 *   OWN      slots of the program's own; the key's follows them
 *   VALUES   0: only count; 1: durations; 2: signed integers; 3: doubles
 */
#define BUCKETS 33792 /* HdrHistogram(1, 3.6e12, 3) */
#define LARGEST 3600000000000ULL

#define KEY_SLOT OWN

#if !DENSE

struct key {
  u32 series;
  u32 kind; /* 0 a key, 1 a text that is nil or unreadable */
#if BY == 2
  u64 text[KEY_TEXT / 8];
#else
  u64 number;
#endif
};

struct group {
  u64 born; /* with cpu: a number of its own, for its buckets */
  u64 cpu;
  u64 count; /* only without VALUES: else the buckets add up to it */
  u64 total;
};

struct bucket {
  u64 born;
  u32 cpu;
  u32 place;
};
#endif

/*
 * The log-linear bucket of 3 significant digits. bit_length by halving: the
 * compiler's count of leading zeros is out of its back end's reach.
 */
static __always_inline u32 bucket_of(u64 value) {
  u64 y = (value | 2047) >> 11;
  u64 rest = y;
  u32 bits = 0;
  if (rest >> 32) { bits += 32; rest >>= 32; }
  if (rest >> 16) { bits += 16; rest >>= 16; }
  if (rest >> 8) { bits += 8; rest >>= 8; }
  if (rest >> 4) { bits += 4; rest >>= 4; }
  if (rest >> 2) { bits += 2; rest >>= 2; }
  if (rest >> 1) { bits += 1; rest >>= 1; }
  bits += rest;
  return (bits << 10) + (u32)(value >> bits);
}

static __always_inline u32 place_of(u64 value) {
#if VALUES == 3
  return (u32)(value >> 42);
#elif VALUES == 2
  return (s64)value < 0 ? bucket_of(-value) | 0x80000000u : bucket_of(value);
#else
  return bucket_of(value);
#endif
}

#if !DENSE
static __always_inline struct group *group_of(struct key *key) {
  struct group *group = LOOKUP(groups, key);
  struct group fresh = {};
  if (group)
    return group;
  fresh.born = bpf_ktime_get_ns();
  fresh.cpu = bpf_get_smp_processor_id();
  /* Another processor may have been faster: then its group is ours. */
  INSERT(groups, key, &fresh);
  return LOOKUP(groups, key);
}

static __always_inline void fill_key(struct key *key, u64 *slots) {
#if BY == 1
  key->number = slots[KEY_SLOT];
#elif BY == 2
  u64 pointer = slots[KEY_SLOT];
  int length = -1;
  if (pointer)
    length = read_user_string(key->text, KEY_TEXT, (void *)pointer);
  if (length < 0) {
    key->kind = 1;
    key->text[0] = pointer != 0; /* nil, or a pointer that leads nowhere */
  } else if (length == KEY_TEXT) {
    /* Cut, unless it fits to the byte: the last byte says so. */
    u8 beyond = 0;
    read_user(&beyond, 1, (void *)(pointer + KEY_TEXT - 1));
    if (beyond)
      key->text[KEY_TEXT / 8 - 1] |= 0xff00000000000000ULL;
  }
#endif
}
#endif

static __always_inline void record(u32 series, u64 value, u64 *slots) {
#if DENSE && !VALUES
  u64 *total = LOOKUP(totals, &series);
  if (total)
    __sync_fetch_and_add(total, 1);
#elif DENSE
  u32 place = series * BUCKETS + bucket_of(value);
  u64 *cell = LOOKUP(histogram, &place);
  u64 *total = LOOKUP(totals, &series);
  if (cell)
    __sync_fetch_and_add(cell, 1);
  if (total)
    __sync_fetch_and_add(total, value);
#else
  struct key key = {};
  struct group *group;
  key.series = series;
  fill_key(&key, slots);
  group = group_of(&key);
#if BY
  if (!group) /* everything beyond --max-keys; the reader gives them a `born` */
    group = LOOKUP(others, &series);
#endif
  if (!group) {
    count_one(COUNTER_NO_ROOM);
    return;
  }
#if !VALUES
  __sync_fetch_and_add(&group->count, 1);
#else
  __sync_fetch_and_add(&group->total, value);
  struct bucket bucket = {};
  u64 *cell, zero = 0;
  bucket.born = group->born;
  bucket.cpu = (u32)group->cpu;
  bucket.place = place_of(value);
  cell = LOOKUP(buckets, &bucket);
  if (!cell) {
    INSERT(buckets, &bucket, &zero);
    cell = LOOKUP(buckets, &bucket);
  }
  if (cell)
    __sync_fetch_and_add(cell, 1);
  else
    count_one(COUNTER_NO_ROOM);
#endif
#endif
}
