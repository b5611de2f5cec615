/*
 * The interface of the original libstapsdt, on top of the pool.
 *
 * The public struct of a provider is followed by our private fields in the
 * same allocation.
 *
 * SPDX-License-Identifier: MIT
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"

/* Use the field, not the C library's macro. */
#undef errno

/* The original library accepts any bytes in names. Only the length is limited,
 * so that every note fits an image. */
#define MAX_COMPAT_NAME 255
#define TEMPORARY_DIRECTORY "/tmp"

struct provider {
  SDTProvider_t public;
  sdt_pool *pool; /* NULL until loaded */
};

static struct provider *private_of(SDTProvider_t *provider) {
  return (struct provider *)(void *)provider;
}

/* ---------------------------------------------------------------- errors */

static int fail(SDTProvider_t *provider, SDTError_t code, const char *format,
                ...) __attribute__((format(printf, 3, 4)));

static int fail(SDTProvider_t *provider, SDTError_t code, const char *format,
                ...) {
  char *message = NULL;
  va_list arguments;
  va_start(arguments, format);
  if (vasprintf(&message, format, arguments) < 0)
    message = NULL;
  va_end(arguments);

  free(provider->error);
  provider->error = message;
  provider->errno = code;
  return -1;
}

/* --------------------------------------------------------------- providers */

static int is_name(const char *name) {
  return name && *name && strnlen(name, MAX_COMPAT_NAME + 1) <= MAX_COMPAT_NAME;
}

SDT_EXPORT SDTProvider_t *providerInit(const char *name) {
  if (!is_name(name))
    return NULL;
  struct provider *provider = calloc(1, sizeof(*provider));
  if (!provider)
    return NULL;

  provider->public.errno = noError;
  provider->public._fd = -1;
  provider->public._memfd = memfd_enabled;
  provider->public.name = strdup(name);
  if (!provider->public.name) {
    free(provider);
    return NULL;
  }
  return &provider->public;
}

SDT_EXPORT int providerUseMemfd(SDTProvider_t *provider,
                                const MemFDOption_t use_memfd) {
  if (use_memfd != memfd_disabled && use_memfd != memfd_enabled)
    return fail(provider, elfCreationError, "provider '%s': no such option %d",
                provider->name, (int)use_memfd);
  provider->_memfd = use_memfd;
  return 0;
}

static int describe(const SDTProbe_t *probe,
                    struct sdt_description *description) {
  *description = (struct sdt_description){
      .provider = probe->provider->name,
      .name = probe->name,
      .count = (size_t)probe->argCount,
  };
  for (int i = 0; i < probe->argCount; i++)
    if (sdt_append_argument(description->arguments, sdt_elf_native(),
                            (size_t)i, probe->argFmt[i]) != 0)
      return -1;
  return 0;
}

static SDTError_t code_of(int status, const SDTProvider_t *provider) {
  if (status == SDT_ELOAD)
    return sharedLibraryOpenError;
  if (status == SDT_EIMAGE && provider->_memfd == memfd_disabled)
    return tmpCreationError;
  return elfCreationError;
}

/* Call with the lock held and the provider loaded. */
static int publish(SDTProbe_t *probe) {
  SDTProvider_t *provider = probe->provider;
  struct sdt_description description;
  if (describe(probe, &description) != 0)
    return fail(provider, elfCreationError,
                "probe '%s' of provider '%s': unknown argument type",
                probe->name, provider->name);

  sdt_error error;
  sdt_probe *laid;
  int status =
      sdt_pool_add(private_of(provider)->pool, &description, &error, &laid);
  if (status != SDT_OK)
    return fail(provider, code_of(status, provider),
                "probe '%s' of provider '%s': %s", probe->name, provider->name,
                error.message);
  __atomic_store_n(&probe->_fire, (void *)(uintptr_t)laid->site,
                   __ATOMIC_RELEASE);
  return 0;
}

static void probe_free(SDTProbeList_t *node) {
  free(node->probe.name);
  free(node);
}

static SDTProbeList_t *probe_new(SDTProvider_t *provider, const char *name,
                                 int count) {
  SDTProbeList_t *node = calloc(1, sizeof(*node));
  if (!node)
    return NULL;
  node->probe.provider = provider;
  node->probe.argCount = count;
  node->probe.name = strdup(name);
  if (!node->probe.name) {
    free(node);
    return NULL;
  }
  return node;
}

static int check_probe(SDTProvider_t *provider, const char *name, int count) {
  if (!is_name(name))
    return fail(provider, elfCreationError,
                "a probe of provider '%s' needs a name of 1 to %d bytes",
                provider->name, MAX_COMPAT_NAME);
  if (count < 0 || count > MAX_ARGUMENTS)
    return fail(provider, elfCreationError,
                "probe '%s' of provider '%s': %d arguments, not 0 to %d", name,
                provider->name, count, MAX_ARGUMENTS);
  return 0;
}

/* Call with the lock held. Lists the probe, or frees it on failure. */
static SDTProbe_t *add(SDTProvider_t *provider, SDTProbeList_t *node) {
  struct sdt_description ignored;
  int status = describe(&node->probe, &ignored);
  if (status != 0)
    fail(provider, elfCreationError,
         "probe '%s' of provider '%s': unknown argument type",
         node->probe.name, provider->name);
  else if (private_of(provider)->pool)
    status = publish(&node->probe);
  if (status != 0) {
    probe_free(node);
    return NULL;
  }
  node->next = provider->probes;
  provider->probes = node;
  return &node->probe;
}

SDT_EXPORT SDTProbe_t *providerAddProbe(SDTProvider_t *provider,
                                        const char *name, int argCount, ...) {
  if (check_probe(provider, name, argCount) != 0)
    return NULL;
  SDTProbeList_t *node = probe_new(provider, name, argCount);
  if (!node) {
    fail(provider, elfCreationError, "%s", sdt_strerror(SDT_ENOMEM));
    return NULL;
  }

  va_list arguments;
  va_start(arguments, argCount);
  for (int i = 0; i < argCount; i++)
    node->probe.argFmt[i] = (ArgType_t)va_arg(arguments, int);
  va_end(arguments);
  sdt_lock();
  SDTProbe_t *probe = add(provider, node);
  sdt_unlock();
  return probe;
}

/* -------------------------------------------------------------- the image */

/* Programs read these fields although the header calls them private. */
static int show_image(SDTProvider_t *provider) {
  struct sdt_image *image = sdt_pool_newest(private_of(provider)->pool);
  provider->_handle = image->handle ? image->handle : image->loaded;
  provider->_fd = image->fd;
  provider->_filename = strdup(image->path);
  return provider->_filename ? 0 : -1;
}

static void forget_image(SDTProvider_t *provider) {
  for (SDTProbeList_t *node = provider->probes; node; node = node->next)
    node->probe._fire = NULL;
  free(provider->_filename);
  provider->_filename = NULL;
  provider->_handle = NULL;
  provider->_fd = -1;
}

/* Call with the lock held. On failure, unload() cleans up. */
static int load(SDTProvider_t *provider) {
  struct provider *private = private_of(provider);
  const char *directory =
      provider->_memfd == memfd_disabled ? TEMPORARY_DIRECTORY : NULL;
  private->pool = sdt_pool_open(directory, provider->name);
  if (!private->pool)
    return fail(provider, elfCreationError, "%s", sdt_strerror(SDT_ENOMEM));

  sdt_error error;
  int status = sdt_pool_grow(private->pool, &error);
  if (status != SDT_OK)
    return fail(provider, code_of(status, provider), "provider '%s': %s",
                provider->name, error.message);
  if (show_image(provider) != 0)
    return fail(provider, elfCreationError, "%s", sdt_strerror(SDT_ENOMEM));
  for (SDTProbeList_t *node = provider->probes; node; node = node->next)
    if (publish(&node->probe) != 0)
      return -1;
  return 0;
}

/* Call with the lock held. */
static int unload(SDTProvider_t *provider) {
  struct provider *private = private_of(provider);
  sdt_pool *pool = private->pool;
  private->pool = NULL;
  forget_image(provider);
  return pool ? sdt_pool_close(pool) : 0;
}

SDT_EXPORT int providerLoad(SDTProvider_t *provider) {
  sdt_lock();
  int status = private_of(provider)->pool ? 0 : load(provider);
  if (status != 0)
    (void)unload(provider);
  sdt_unlock();
  return status;
}

SDT_EXPORT int providerUnload(SDTProvider_t *provider) {
  sdt_lock();
  int status = unload(provider);
  sdt_unlock();
  if (status != 0)
    return fail(provider, sharedLibraryCloseError,
                "provider '%s': its image had been closed already",
                provider->name);
  return 0;
}

SDT_EXPORT void providerDestroy(SDTProvider_t *provider) {
  if (!provider)
    return;
  (void)providerUnload(provider);
  SDTProbeList_t *next;
  for (SDTProbeList_t *node = provider->probes; node; node = next) {
    next = node->next;
    probe_free(node);
  }
  free(provider->name);
  free(provider->error);
  free(private_of(provider));
}

/* ------------------------------------------------------------------ firing */

SDT_EXPORT void probeFire(SDTProbe_t *probe, ...) {
  const void *site = __atomic_load_n(&probe->_fire, __ATOMIC_ACQUIRE);
  if (!site || probe->argCount < 0 || probe->argCount > MAX_ARGUMENTS)
    return;

  uint64_t operands[MAX_ARGUMENTS];
  va_list arguments;
  va_start(arguments, probe);
  /* Narrower arguments also occupy a full slot, and no reader uses the
   * upper bytes. */
  for (int i = 0; i < probe->argCount; i++)
    operands[i] = va_arg(arguments, uint64_t);
  va_end(arguments);

  const sdt_probe call = {
      .site = site,
      .count = (uint8_t)probe->argCount,
  };
  sdt_fire(&call, operands);
}

SDT_EXPORT int probeIsEnabled(SDTProbe_t *probe) {
  const volatile uint64_t *site =
      __atomic_load_n(&probe->_fire, __ATOMIC_ACQUIRE);
  return site && *site != SDT_SITE_IDLE;
}
