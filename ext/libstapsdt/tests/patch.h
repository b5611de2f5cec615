/*
 * Patches a site like a tracer, in the process's private copy of the page.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef PATCH_H
#define PATCH_H

#include "libstapsdt.h"

/* Write a breakpoint to the site, which must then not be called. */
int patch_breakpoint(const sdt_probe *probe);
int patch_restore(const sdt_probe *probe);

/*
 * Redirect calls of the site to a recorder. This overwrites the next two sites,
 * which must be unused.
 */
int patch_record(const sdt_probe *probe);
extern uint64_t patch_recorded[SDT_MAX_OPERANDS];
extern unsigned patch_calls;

#endif /* PATCH_H */
