/*
 * libstapsdt: USDT probes created at run time, for Linux.
 *
 * This header declares two interfaces. New programs use the first, `sdt_*`:
 * probes with up to 12 arguments, defined at any time, from any thread. The
 * second is the C interface of the original libstapsdt. It has the same
 * functions and fields, so programs written for that library run against this
 * one.
 *
 * Unless stated otherwise, functions are thread-safe, and their pointer
 * arguments must not be NULL.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef LIBSTAPSDT_H
#define LIBSTAPSDT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------- version */

/* The version of this header; sdt_version() returns the loaded library's. */
#define SDT_VERSION "0.2.0"
/* Use as: SDT_VERSION_NUMBER >= SDT_VERSION_OF(0, 2, 0) */
#define SDT_VERSION_OF(major, minor, patch)                                    \
  ((major) * 1000000 + (minor) * 1000 + (patch))
#define SDT_VERSION_NUMBER SDT_VERSION_OF(0, 2, 0)

/*
 * Return the version of the loaded library, such as "0.2.0". Never NULL. The
 * string is static.
 */
const char *sdt_version(void);

/* ------------------------------------------------------------------ limits */

#define SDT_MAX_OPERANDS 12
/* Length of provider, probe, and argument names: 1 to 63 of A-Z a-z 0-9 _ */
#define SDT_MAX_NAME 63

/* ------------------------------------------------------------------ errors */

/*
 * All status codes with their default messages. Functions that return an int
 * return one of these codes unless stated otherwise; SDT_OK is 0.
 */
#define SDT_ERRORS(X)                                                          \
  X(SDT_OK, "no error")                                                        \
  X(SDT_ENAME, "a name must be 1 to 63 of A-Z a-z 0-9 _")                      \
  X(SDT_EOPERANDS, "a probe has at most 12 operands")                          \
  X(SDT_ETYPE, "unknown operand type or role")                                 \
  X(SDT_ENOMEM, "out of memory")                                               \
  X(SDT_EIMAGE, "the probe image could not be created")                        \
  X(SDT_ELOAD, "the probe image could not be loaded")                          \
  X(SDT_EUNSUPPORTED, "this machine has no probe images")

typedef enum sdt_status {
#define SDT_ENUM(code, message) code,
  SDT_ERRORS(SDT_ENUM)
#undef SDT_ENUM
} sdt_status;

/* Enough for a message that includes the failed call and its errno. */
#define SDT_MESSAGE_SIZE 256
typedef struct sdt_error {
  sdt_status status;
  char message[SDT_MESSAGE_SIZE];
} sdt_error;

/*
 * Return the default message of a status code. Never NULL: "unknown error" for
 * an unknown code. The string is static.
 */
const char *sdt_strerror(int status);

/* --------------------------------------------------------------- operands */

/* Types as stored in the `rbtrace` note (docs/probes.md): never renumber. */
typedef enum sdt_type {
  SDT_INTEGER = 1, /* int64; nil is INT64_MIN */
  SDT_STRING = 2,  /* pointer to NUL-terminated bytes; nil is NULL */
  SDT_SYMBOL = 3,  /* like SDT_STRING */
  SDT_FLOAT = 4,   /* raw IEEE 754 bits; nil is SDT_NIL_FLOAT */
  SDT_BOOL = 5,    /* 1, 0; nil is 2 */
  SDT_OPEN = 6,    /* unknown; only nil (INT64_MIN) so far: see sdt_settle */
} sdt_type;

typedef enum sdt_operand_role {
  SDT_ARGUMENT = 0,
  SDT_DURATION = 1, /* int64 nanoseconds; -1: the span began untraced */
  SDT_OUTCOME = 2,  /* 0 returned, 1 raised, 2 left by throw or break */
  SDT_RESULT = 3,   /* only the end of a span has it */
  SDT_METHOD = 4,   /* not an operand: the Ruby name of the measured method */
} sdt_operand_role;

typedef enum sdt_probe_role {
  SDT_EVENT = 0,
  SDT_SPAN_BEGIN = 1,
  SDT_SPAN_END = 2,
} sdt_probe_role;

#define SDT_NIL_INTEGER INT64_MIN
#define SDT_NIL_FLOAT UINT64_C(0x7ff8726274726163) /* a quiet NaN, ours alone */
#define SDT_NIL_BOOL 2

typedef struct sdt_operand {
  const char *name; /* NULL or "": unnamed, shown as arg0, arg1 ... */
  sdt_type type;
  sdt_operand_role role;
} sdt_operand;

/* ----------------------------------------------------------------- probes */

/*
 * The eight bytes of an untraced site: nop, ret, and padding.
 * x86-64: 1-byte nop, ret, int3 x 6. aarch64: nop, ret.
 */
#if defined(__x86_64__)
#define SDT_SITE_IDLE UINT64_C(0xccccccccccccc390)
#elif defined(__aarch64__)
#define SDT_SITE_IDLE UINT64_C(0xd65f03c0d503201f)
#else
#define SDT_SITE_IDLE UINT64_C(0)
#endif

/* A pool owns images (each is one memfd, one ELF file) and their probes. */
typedef struct sdt_pool sdt_pool;

/*
 * A probe. `watch` points to eight bytes that equal SDT_SITE_IDLE while the
 * probe should be skipped. These are the site itself; or bytes that never
 * change, while the probe is disabled; or bytes that never match
 * (sdt_watch_always), which sends every fire through the caller's slow path.
 * Callers may read the fields; only the library writes them. A probe lives as
 * long as its pool.
 */
typedef struct sdt_probe {
  const volatile uint64_t *watch;
  const volatile uint64_t *site;
  uint8_t count; /* number of operands */
  uint8_t role;  /* sdt_probe_role */
  uint8_t disabled;
  uint8_t always;
  unsigned char *note; /* its rbtrace note, or NULL; private */
} sdt_probe;

/*
 * Create an empty pool. It opens no files until the first probe is defined.
 *
 * Returns the pool, or NULL if out of memory.
 */
sdt_pool *sdt_pool_create(void);

/*
 * Unmap all images of a pool and free all its probes. No thread may be using
 * its probes.
 *
 * pool: the pool, or NULL, which does nothing
 */
void sdt_pool_destroy(sdt_pool *pool);

/*
 * Define a probe, at any time and from any thread. This includes constructors
 * of libraries: the library holds no lock while it loads an image. When this
 * returns, the probe is visible to every reader of the process's ELF images.
 * Names are copied. Defining the same name twice creates two sites with one
 * name, as in any USDT program.
 *
 * pool: receives the probe
 * provider, name: 1 to 63 of A-Z a-z 0-9 _
 * role: event, or beginning or end of a span
 * operands: `count` operands; may be NULL if count is 0
 * count: 0 to SDT_MAX_OPERANDS
 * error: filled on failure; may be NULL
 * ret: set to the probe
 *
 * Returns SDT_OK; or, with nothing changed,
 *   SDT_ENAME         invalid name
 *   SDT_EOPERANDS     too many operands, for the library or for this machine
 *   SDT_ETYPE         unknown type or role
 *   SDT_ENOMEM        out of memory
 *   SDT_EIMAGE        cannot create the image
 *   SDT_ELOAD         cannot load the image
 *   SDT_EUNSUPPORTED  not an x86-64 or aarch64 machine
 */
int sdt_define(sdt_pool *pool, const char *provider, const char *name,
               sdt_probe_role role, const sdt_operand *operands, size_t count,
               sdt_error *error, sdt_probe **ret);

/*
 * Define the probe of a method. Its rbtrace note also contains the method's
 * name in Ruby, such as "Shop::Till#pay!".
 *
 * method: the name, 1 to SDT_MAX_METHOD bytes
 * Other arguments: as for sdt_define
 *
 * Returns like sdt_define; SDT_ENAME also if `method` is empty or too long.
 */
#define SDT_MAX_METHOD 253
int sdt_define_method(sdt_pool *pool, const char *provider, const char *name,
                      sdt_probe_role role, const sdt_operand *operands,
                      size_t count, const char *method, sdt_error *error,
                      sdt_probe **ret);

/*
 * Set the type of an operand that was defined as SDT_OPEN, at any time and
 * from any thread. The first type counts, in every process that shares the
 * note (after a fork). Readers of the note see it from then on.
 *
 * probe: a probe of sdt_define or sdt_define_method
 * index: number of the operand, from 0
 * type: the type, not SDT_OPEN
 * ret: set to the operand's current type, which is `type` only if it was open
 *
 * Returns SDT_OK, SDT_EOPERANDS (no such operand), or SDT_ETYPE.
 */
int sdt_settle(sdt_probe *probe, size_t index, sdt_type type, sdt_type *ret);

/*
 * Disable or enable a probe. sdt_watched and sdt_traced return 0 for a
 * disabled probe, which stays visible to tracers.
 */
void sdt_probe_disable(sdt_probe *probe);
void sdt_probe_enable(sdt_probe *probe);

/*
 * Make sdt_watched() return nonzero for a probe whatever its site contains (on
 * nonzero), or restore the normal check (on 0).
 */
void sdt_watch_always(sdt_probe *probe, int on);

/*
 * Check whether to fire: one load and one compare through `watch`, no call.
 *
 * Returns nonzero if the probe is traced or always watched, else 0.
 */
static inline int sdt_watched(const sdt_probe *probe) {
  const volatile uint64_t *watch =
      __atomic_load_n(&probe->watch, __ATOMIC_RELAXED);
  return __builtin_expect(*watch != SDT_SITE_IDLE, 0);
}

/*
 * Check whether the site is patched and the probe enabled; the slow path of
 * sdt_watched. Returns nonzero if so, else 0.
 */
int sdt_traced(const sdt_probe *probe);

/*
 * Call the probe's site.
 *
 * operands: probe->count values, converted as described at sdt_type
 *
 * If the probe is untraced, the call only executes the site's nop and ret.
 */
void sdt_fire(const sdt_probe *probe, const uint64_t *operands);

/* Statistics of a pool. */
typedef struct sdt_pool_stats {
  size_t images;
  size_t probes;
  size_t bytes; /* used by notes and sites */
} sdt_pool_stats;
/* Store the pool's current statistics in `ret`. */
void sdt_pool_stat(sdt_pool *pool, sdt_pool_stats *ret);

/* ------------------------------------------------- the original interface */

/*
 * As in the original library, calls for one provider must not overlap, except
 * probeFire and probeIsEnabled. Calls for different providers may overlap.
 *
 * One default differs: a new provider keeps its probes in a memfd. The
 * original creates a file in /tmp unless it was built to use memfds. Programs
 * that expect providerLoad to fail if it cannot create a file (such as the
 * original's own tests), or that read _filename, must therefore first call
 * providerUseMemfd(provider, memfd_disabled).
 *
 * On failure, functions that take a provider set its fields `errno` (a
 * SDTError_t) and `error` (a message, or NULL if out of memory).
 */

#define MAX_ARGUMENTS 6

typedef enum {
  noError = -1,
  elfCreationError = 0,
  tmpCreationError = 1,
  sharedLibraryOpenError = 2,
  symbolLoadingError = 3,
  sharedLibraryCloseError = 4,
} SDTError_t;

typedef enum {
  noarg = 0,
  uint8 = 1,
  int8 = -1,
  uint16 = 2,
  int16 = -2,
  uint32 = 4,
  int32 = -4,
  uint64 = 8,
  int64 = -8,
} ArgType_t;

typedef enum {
  memfd_disabled = 0,
  memfd_enabled = 1,
} MemFDOption_t;

struct SDTProvider;

typedef struct SDTProbe {
  char *name;
  ArgType_t argFmt[MAX_ARGUMENTS];
  void *_fire;
  struct SDTProvider *provider;
  int argCount;
} SDTProbe_t;

typedef struct SDTProbeList_ {
  SDTProbe_t probe;
  struct SDTProbeList_ *next;
} SDTProbeList_t;

/* In the C library, errno is a macro; the original used it as a field name. */
#pragma push_macro("errno")
#undef errno
typedef struct SDTProvider {
  char *name;
  SDTProbeList_t *probes;
  SDTError_t errno;
  char *error;

  /* private */
  void *_handle;
  char *_filename;
  int _fd;
  MemFDOption_t _memfd;
} SDTProvider_t;
#pragma pop_macro("errno")

/*
 * Create a provider without probes. It keeps its probes in a memfd.
 *
 * name: 1 to 255 bytes; copied
 *
 * Returns the provider, or NULL if the name is invalid or out of memory.
 */
SDTProvider_t *providerInit(const char *name);

/*
 * Choose where the next providerLoad keeps the probes.
 *
 * use_memfd: memfd_enabled (the default), or memfd_disabled for a file in /tmp
 *
 * Returns 0, or -1 for another value (elfCreationError).
 */
int providerUseMemfd(SDTProvider_t *provider, const MemFDOption_t use_memfd);

/*
 * Add a probe. If the provider is loaded, the probe works at once.
 *
 * name: 1 to 255 bytes; copied
 * argCount: 0 to MAX_ARGUMENTS
 * ...: `argCount` values of ArgType_t
 *
 * Returns the probe, which belongs to the provider; or NULL if the name, the
 * number, or a type is invalid, out of memory, or the probe cannot be created.
 */
SDTProbe_t *providerAddProbe(SDTProvider_t *provider, const char *name,
                             int argCount, ...);

/*
 * Make the provider's probes visible to tracers. A loaded provider stays loaded.
 *
 * Returns 0, or -1 with nothing loaded: elfCreationError, tmpCreationError
 * (cannot create the file), or sharedLibraryOpenError (cannot load the image).
 */
int providerLoad(SDTProvider_t *provider);

/*
 * Remove the provider's image. Its probes stay in the list, do nothing when
 * fired, and can be loaded again.
 *
 * Returns 0, or -1 if something else had already closed the image
 * (sharedLibraryCloseError); the provider is unloaded in any case.
 */
int providerUnload(SDTProvider_t *provider);

/* Unload a provider, and free it and its probes. NULL does nothing. */
void providerDestroy(SDTProvider_t *provider);

/*
 * Fire a probe. Has no effect unless its provider is loaded.
 *
 * ...: one argument per argument type of the probe
 */
void probeFire(SDTProbe_t *probe, ...);

/* Return 1 if the probe is loaded and traced, else 0. */
int probeIsEnabled(SDTProbe_t *probe);

#ifdef __cplusplus
}
#endif

#endif /* LIBSTAPSDT_H */
