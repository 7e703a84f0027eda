/* device.c - opening a device by name. */
#include "compute/device.h"

#include <string.h>

#include "compute/cpu/cpu.h"
#include "compute/cpu/kernels.h"
#include "compute/ref/ref.h"

qn_code qn_device_open(qn_device **out, const qn_device_opts *opts, qn_err *err)
{
    *out = NULL;
    const char *name = opts->name ? opts->name : "cpu";
    if (!strcmp(name, "cpu")) return qn_cpu_open(out, opts, err);
    if (!strcmp(name, "ref")) return qn_ref_open(out, opts, err);
    return qn_err_set(err, QN_UNSUPPORTED, "there is no device \"%s\"; choose \"cpu\" or \"ref\"", name);
}

const char *qn_device_isa(const qn_device *d)
{
    if (!strcmp(d->name, "ref")) return qn_ref_isa(d);
    return strcmp(d->name, "cpu") ? "" : ((const qn_cpu *)(const void *)d)->k->name;
}
