/* A stand-in for libnvidia-ml.so.1, for the unmodified pynvml. NVML_STUB in the environment names the scenario:
 *   busy           two H100 at work, NVLink up, one process each (the default)
 *   idle           the same without a process
 *   mig            the first of two H100 is split into two instances
 *   unsupported    two GPUs that support nothing but their memory
 *   lost           the second GPU falls off the bus after it was opened
 *   lost-at-start  it had before; lost-all: both had
 *   empty          a driver without GPUs
 *   failing        the first GPU has Xid errors 48 and 79 at the third look, and remapped rows, but no memory for GPM;
 *                  the second is an older one
 *   status N       nvmlInit returns N
 * With -DOLD it lacks the functions of newer drivers. What it lacks is FunctionNotFound to pynvml, which binds lazily.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned u32;
typedef unsigned long long u64;
typedef int *Device;
enum { OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, NOT_FOUND = 6, GPU_IS_LOST = 15 };

static int gpus[2], instances[2];
static int looks; /* how often power was asked for, over all devices */

static int scenario(const char *name) {
    const char *set = getenv("NVML_STUB");
    return !strcmp(set ? set : "busy", name);
}
static int is_instance(Device d) { return d == &instances[0] || d == &instances[1]; }
static int number_of(Device d) { return (int)(is_instance(d) ? d - instances : d - gpus); }

/* What every question about a device meets first. */
static u32 fate(Device d) {
    if (scenario("lost") && d == &gpus[1] && looks > 1) return GPU_IS_LOST;
    return scenario("unsupported") || is_instance(d) ? NOT_SUPPORTED : OK;
}
#define ASK(d, answer) do { u32 status = fate(d); if (status) return status; answer; return OK; } while (0)

u32 nvmlInitWithFlags(u32 flags) {
    const char *set = getenv("NVML_STUB");
    static const char noise[] = "NVML says hello where nobody wants it\n";
    (void)flags;
    if (write(1, noise, sizeof noise - 1) < 0 || write(2, noise, sizeof noise - 1) < 0) return 999;
    return set && !strncmp(set, "status ", 7) ? (u32)atoi(set + 7) : OK;
}
u32 nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(u32 status) { (void)status; return "stub error"; }
u32 nvmlSystemGetDriverVersion(char *out, u32 size) { snprintf(out, size, "570.133.20"); return OK; }
u32 nvmlSystemGetNVMLVersion(char *out, u32 size) { snprintf(out, size, "12.570.133.20"); return OK; }
u32 nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 12080; return OK; }
u32 nvmlSystemGetProcessName(u32 pid, char *out, u32 size) { snprintf(out, size, "/usr/bin/python%u", pid); return OK; }

u32 nvmlDeviceGetCount_v2(u32 *count) { *count = scenario("empty") ? 0 : 2; return OK; }
u32 nvmlDeviceGetHandleByIndex_v2(u32 index, Device *d) {
    if (scenario("lost-all") || (scenario("lost-at-start") && index == 1)) return GPU_IS_LOST;
    *d = &gpus[index];
    return OK;
}
u32 nvmlDeviceGetName(Device d, char *out, u32 size) {
    snprintf(out, size, is_instance(d) ? "NVIDIA H100 80GB HBM3 MIG 3g.40gb" : "NVIDIA H100 80GB HBM3");
    return OK;
}
u32 nvmlDeviceGetUUID(Device d, char *out, u32 size) {
    snprintf(out, size, "%s-stub-%d", is_instance(d) ? "MIG" : "GPU", number_of(d));
    return OK;
}
u32 nvmlDeviceGetPciInfo_v3(Device d, char *pci) { /* legacy id[16], domain, bus, device, ids, id[32] */
    u32 numbers[5] = {0, 0x1b + (u32)number_of(d), 0, 0x233010de, 0};
    memset(pci, 0, 16 + sizeof numbers + 32);
    memcpy(pci + 16, numbers, sizeof numbers);
    return OK;
}
u32 nvmlDeviceGetMemoryInfo(Device d, u64 *m) { /* total, free, used */
    m[0] = (is_instance(d) ? 40ull : 80ull) << 30, m[2] = (scenario("idle") ? 1ull : 61ull) << 30, m[1] = m[0] - m[2];
    return fate(d) == GPU_IS_LOST ? GPU_IS_LOST : OK;
}
u32 nvmlDeviceGetMigMode(Device d, u32 *current, u32 *pending) {
    *current = *pending = scenario("mig") && d == &gpus[0];
    return OK;
}
u32 nvmlDeviceGetMaxMigDeviceCount(Device d, u32 *count) { (void)d; *count = 7; return OK; }
u32 nvmlDeviceGetMigDeviceHandleByIndex(Device d, u32 index, Device *out) {
    (void)d;
    if (index != 1 && index != 4) return NOT_FOUND; /* places may be empty */
    *out = &instances[index == 4];
    return OK;
}
u32 nvmlDeviceGetCudaComputeCapability(Device d, int *major, int *minor) { ASK(d, (*major = 9, *minor = 0)); }
u32 nvmlDeviceGetVirtualizationMode(Device d, u32 *mode) { ASK(d, *mode = 1); }
u32 nvmlDeviceGetUtilizationRates(Device d, u32 *x) {
    if (scenario("mig") && d == &gpus[0]) return NOT_SUPPORTED;
    ASK(d, (x[0] = 97, x[1] = 41));
}
u32 nvmlDeviceGetPowerUsage(Device d, u32 *mw) { looks++; ASK(d, *mw = 65535); } /* 65.535 W is not "all bits set" */
u32 nvmlDeviceGetEnforcedPowerLimit(Device d, u32 *mw) { ASK(d, *mw = 650000); }
u32 nvmlDeviceGetPowerManagementDefaultLimit(Device d, u32 *mw) { ASK(d, *mw = 700000); }
u32 nvmlDeviceGetTotalEnergyConsumption(Device d, u64 *mj) { ASK(d, *mj = 123456789); }
u32 nvmlDeviceGetTemperature(Device d, u32 sensor, u32 *c) { (void)sensor; ASK(d, *c = 55); }
u32 nvmlDeviceGetClockInfo(Device d, u32 type, u32 *mhz) { ASK(d, *mhz = type == 2 ? 2619 : 1755); }
u32 nvmlDeviceGetMaxClockInfo(Device d, u32 type, u32 *mhz) { ASK(d, *mhz = type == 2 ? 2619 : 1980); }
u32 nvmlDeviceGetCurrPcieLinkWidth(Device d, u32 *x) { ASK(d, *x = 8); }
u32 nvmlDeviceGetMaxPcieLinkWidth(Device d, u32 *x) { ASK(d, *x = 16); }
u32 nvmlDeviceGetCurrPcieLinkGeneration(Device d, u32 *x) { ASK(d, *x = 4); }
u32 nvmlDeviceGetMaxPcieLinkGeneration(Device d, u32 *x) { ASK(d, *x = 5); }
u32 nvmlDeviceGetPcieReplayCounter(Device d, u32 *x) { ASK(d, *x = 3); }
u32 nvmlDeviceGetTotalEccErrors(Device d, u32 type, u32 counter, u64 *x) { (void)counter; ASK(d, *x = type ? 1 : 70000); }
u32 nvmlDeviceGetNvLinkState(Device d, u32 link, u32 *up) {
    if (link >= 18) return NOT_SUPPORTED;
    ASK(d, *up = d == &gpus[0] && (link != 7 || looks < 2)); /* link 7 of the first goes down; the second has none */
}
u32 nvmlDeviceGetComputeRunningProcesses_v3(Device d, u32 *count, char *out) { /* pid, bytes, ids: 24 bytes each */
    const char *holder = getenv("NVML_STUB_PID"); /* who holds memory of the first GPU */
    u32 pid = holder && d == &gpus[0] ? (u32)atoi(holder) : 4000 + (u32)number_of(d);
    u64 bytes = d == &gpus[1] ? ~0ull : 60ull << 30;
    if (fate(d) && !is_instance(d)) return fate(d);
    if (scenario("idle")) { *count = 0; return OK; }
    if (!out) { *count = 1; return INSUFFICIENT_SIZE; }
    *count = 1;
    memset(out, 0, 24), memcpy(out, &pid, 4), memcpy(out + 8, &bytes, 8);
    return OK;
}

static int registered[2], events;
u32 nvmlEventSetCreate(void **set) { *set = &registered; return OK; }
u32 nvmlDeviceRegisterEvents(Device d, u64 types, void *set) {
    (void)set;
    if (types != 8) return 2;
    ASK(d, registered[number_of(d)] = 1);
}
struct event { Device device; u64 type, data; u32 gpu_instance, compute_instance; };
u32 nvmlEventSetWait_v2(void *set, struct event *event, u32 timeout) {
    static const u64 xids[] = {48, 79};
    (void)set;
    if (timeout) return 999; /* it must not wait */
    if (!scenario("failing") || looks < 4 || events > 1 || !registered[0]) return 10;
    event->device = &gpus[0], event->type = 8, event->data = xids[events++];
    return OK;
}
u32 nvmlDeviceGetRemappedRows(Device d, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    if (d == &gpus[1]) return NOT_SUPPORTED;
    *failed = 0;
    ASK(d, (*corrected = 1, *uncorrected = *pending = scenario("failing")));
}
u32 nvmlDeviceGetRetiredPages(Device d, u32 cause, u32 *count, u64 *pages) {
    if (d != &gpus[1] || fate(d)) return NOT_SUPPORTED;
    if (!pages) { *count = cause; return cause ? INSUFFICIENT_SIZE : OK; }
    *count = cause; /* one for one of the causes */
    return OK;
}
#ifndef OLD
/* GPM: a sample is the number of its reading, a metric what the number of readings between two makes of it. */
struct support { u32 version, supported; };
struct metric { u32 id, status; double value; char *names[3]; };
struct metrics { u32 version, count; int *first, *second; struct metric all[4]; };
static int samples[16], allocated, readings;
u32 nvmlGpmQueryDeviceSupport(Device d, struct support *s) { ASK(d, s->supported = d == &gpus[0]); }
u32 nvmlGpmSampleAlloc(int **sample) {
    if (scenario("failing")) return 20; /* no memory */
    *sample = &samples[allocated++];
    return OK;
}
u32 nvmlGpmSampleGet(Device d, int *sample) { ASK(d, *sample = ++readings); }
u32 nvmlGpmMetricsGet(struct metrics *asked) {
    int apart = *asked->second - *asked->first;
    for (u32 i = 0; i < asked->count; i++) {
        asked->all[i].status = OK;
        asked->all[i].value = (asked->all[i].id == 2 ? 80.25 : asked->all[i].id == 10 ? 55.5 : 1024.0) * apart;
    }
    return asked->version == 1 ? OK : 2;
}
u32 nvmlDeviceGetGpuFabricInfo(Device d, u32 *info) { ASK(d, info[6] = d == &gpus[0] ? 3 : 0); } /* uuid, status, clique, state */
u32 nvmlDeviceGetMemoryInfo_v2(Device d, char *m) { /* version, then total, reserved, free, used */
    u64 total = (is_instance(d) ? 40ull : 80ull) << 30, used = (scenario("idle") ? 1ull : 60ull) << 30;
    memcpy(m + 8, &total, 8), memcpy(m + 32, &used, 8);
    return fate(d) == GPU_IS_LOST ? GPU_IS_LOST : OK;
}
u32 nvmlDeviceGetCurrentClocksEventReasons(Device d, u64 *bits) { ASK(d, *bits = d == &gpus[0] ? 0x88 : 0x8); }
u32 nvmlDeviceGetViolationStatus(Device d, u32 policy, u64 *x) { /* power: ever more than all the time; thermal: never */
    static u64 ns;
    if (d == &gpus[1]) return NOT_SUPPORTED;
    ASK(d, (x[0] = 0, x[1] = policy == 0 ? (ns += 1ull << 50) : 5));
}
struct field { u32 id, scope; int64_t time, latency; u32 type, status; union { u32 u; u64 ull; } value; };
u32 nvmlDeviceGetFieldValues(Device d, int count, struct field *f) {
    for (int i = 0; i < count; i++) {
        f[i].status = OK;
        if (f[i].id == 82 && d == &gpus[0]) f[i].type = 1, f[i].value.u = 61;
        else if (f[i].id == 138 && f[i].scope == 0xFFFFFFFF) f[i].type = 3, f[i].value.ull = 1000;
        else if (f[i].id == 139 && f[i].scope == 0xFFFFFFFF) f[i].type = 3, f[i].value.ull = 2000;
        else f[i].status = NOT_SUPPORTED;
    }
    return fate(d);
}
#endif
