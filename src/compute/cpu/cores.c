/* cores.c - how many threads the CPU device should use: QUERN_THREADS, or one per physical core
 * that the affinity mask and the control group leave to this process. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "compute/cpu/pool.h"
#include "core/rt.h"

/* The first number in a file of /sys or /proc; -1 without one. */
static long first_number(const char *path)
{
    FILE *f = fopen(path, "re");
    long v;
    if (!f) return -1;
    if (fscanf(f, "%ld", &v) != 1) v = -1;
    fclose(f);
    return v;
}

/* Cores of the affinity mask: a CPU counts if it is the lowest allowed one of its core's siblings.
 */
static uint32_t affinity_cores(void)
{
    cpu_set_t allowed, counted;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return 1;
    uint32_t n = 0;
    CPU_ZERO(&counted);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        char path[96];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                 cpu);
        long core = first_number(path); /* the list starts with the core's lowest CPU */
        if (core < 0 || core >= CPU_SETSIZE) core = cpu;
        if (CPU_ISSET((int)core, &counted)) continue;
        CPU_SET((int)core, &counted);
        n++;
    }
    return n ? n : 1;
}

/* CPUs of a quota, rounded up; 0 for none. */
static uint32_t quota_cores(double quota, double period)
{
    if (!(quota > 0 && period > 0)) return 0;
    double n = quota / period;
    return n >= QN_MAX_THREADS ? QN_MAX_THREADS : (uint32_t)(n + 0.999);
}

/* The quota of a control group of version 2: "MAX PERIOD", where MAX may be the word max. */
static uint32_t group2_cores(const char *path)
{
    FILE *f = fopen(path, "re");
    double quota = 0, period = 0;
    if (!f) return 0;
    if (fscanf(f, "%lf %lf", &quota, &period) != 2) quota = 0;
    fclose(f);
    return quota_cores(quota, period);
}

/* The quota of this process's control group and its parents; 0 for none. */
static uint32_t group_cores(void)
{
    char line[512], path[640], *group = NULL;
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::/", 4)) continue;
        line[strcspn(line, "\n")] = 0;
        group = line + 3;
        break;
    }
    if (f) fclose(f);
    uint32_t least = 0;
    for (char *end = group ? group + strlen(group) : NULL; end; end = strrchr(group, '/')) {
        *end = 0;
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
        uint32_t n = group2_cores(path);
        if (n && (!least || n < least)) least = n;
    }
    if (least) return least;
    return quota_cores((double)first_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
                       (double)first_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
}

uint32_t qn_pool_default_threads(void)
{
    double wanted = qn_rt_number("THREADS", 0);
    if (wanted >= 1) return wanted > QN_MAX_THREADS ? QN_MAX_THREADS : (uint32_t)wanted;
    uint32_t n = affinity_cores(), quota = group_cores();
    if (quota && quota < n) n = quota;
    return n > QN_MAX_THREADS ? QN_MAX_THREADS : n;
}
