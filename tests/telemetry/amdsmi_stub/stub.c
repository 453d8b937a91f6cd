/* A stand-in for libamd_smi.so: it answers from a scenario, a text file that is read again at every call.
 *
 * A line is "<gpu|*> <key> <value>"; later lines win. A key is "<structure>.<field>" (an integer, "na", a list with
 * commas, or text), or one of those asked for below. A structure of which the scenario has no field is not supported;
 * a field that it lacks has all bits set, as in the real library. Offsets come from the wrapper (layout.h, generated).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, NOT_SUPPORTED = 2, NOT_FOUND = 31, NOT_INIT = 32 };
enum { LINE = 4096, GPUS = 64 };
typedef uint32_t status;
typedef void *handle;
struct field { const char *name; size_t offset, size, count; int text; };

static int opened, places[GPUS]; /* a handle is the address of a place */

static FILE *scenario(void) {
    const char *path = getenv("AMDSMI_STUB_SCENARIO");
    return path ? fopen(path, "r") : NULL;
}

/* The next line for this GPU (or for all): its key and value. */
static int next(FILE *file, int gpu, char *key, char *value) {
    static char line[LINE];
    char who[16];
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%15s %255s %4095[^\n]", who, key, value) == 3 && (!strcmp(who, "*") || atoi(who) == gpu))
            return 1;
    return 0;
}

static int look_up(int gpu, const char *wanted, char *value) {
    char key[256], found[LINE];
    FILE *file = scenario();
    int hit = 0;
    while (next(file, gpu, key, found))
        if (!strcmp(key, wanted)) hit = 1, strcpy(value, found);
    if (file) fclose(file);
    return hit;
}

static uint64_t number(int gpu, const char *key, uint64_t otherwise) {
    char value[LINE];
    return look_up(gpu, key, value) ? strtoull(value, NULL, 0) : otherwise;
}

static void store(const struct field *field, char *out, char *value) {
    if (field->text) {
        memset(out + field->offset, 0, field->size);
        strncpy(out + field->offset, value, field->size - 1);
        return;
    }
    char *rest = NULL;
    size_t place = 0;
    for (char *one = strtok_r(value, ",", &rest); one && place < field->count; one = strtok_r(NULL, ",", &rest)) {
        uint64_t bits = strcmp(one, "na") ? strtoull(one, NULL, 0) : UINT64_MAX;
        memcpy(out + field->offset + field->size * place++, &bits, field->size);
    }
}

/* Fill a structure with what the scenario has of it. */
static status fill(int gpu, const char *structure, const struct field *fields, size_t count, size_t size, char *out) {
    char key[256], value[LINE];
    size_t prefix = strlen(structure);
    int hits = 0;
    FILE *file = scenario();
    memset(out, 0xFF, size);
    for (size_t i = 0; i < count; i++)
        if (fields[i].text) memset(out + fields[i].offset, 0, fields[i].size);
    while (next(file, gpu, key, value)) {
        if (strncmp(key, structure, prefix) || key[prefix] != '.') continue;
        for (size_t i = 0; i < count; i++)
            if (!strcmp(fields[i].name, key + prefix + 1)) store(&fields[i], out, value), hits++;
    }
    if (file) fclose(file);
    return hits ? OK : NOT_SUPPORTED;
}

/* What every call does first: delay, hang, fail; and from the handle, which GPU is meant. */
static status enter(handle h, const char *function, int *gpu) {
    char key[256];
    struct timespec pause = {0, 1000000};
    *gpu = h ? (int)((int *)h - places) : -1;
    for (uint64_t left = number(*gpu, "delay_ms", 0); left; left--) nanosleep(&pause, NULL);
    while (number(*gpu, "hang", 0)) nanosleep(&pause, NULL);
    if (!opened) return NOT_INIT;
    if (h && (uint64_t)*gpu >= number(-1, "gpus", 1)) return NOT_FOUND;
    snprintf(key, sizeof key, "fail.%s", function);
    return (status)number(*gpu, key, OK);
}

#define ENTER(h) int gpu; status failed = enter(h, __func__, &gpu); if (failed) return failed
#define COUNT(fields) (sizeof fields / sizeof fields[0])
#define ANSWER(function, structure, fields, size) \
    status function(handle h, void *out) { ENTER(h); return fill(gpu, structure, fields, COUNT(fields), size, out); }
/* Of several kinds (clocks, sensors), each a structure of its own in the scenario: "clk_info4.max_clk". */
#define ANSWER_OF(function, structure, fields, size) \
    status function(handle h, uint32_t kind, void *out) { \
        ENTER(h); char key[64]; snprintf(key, sizeof key, "%s%u", structure, kind); \
        return fill(gpu, key, fields, COUNT(fields), size, out); }
#define REFUSE(function) status function(void) { return NOT_SUPPORTED; }

status amdsmi_init(uint64_t flags) {
    (void)flags;
    while (number(-1, "hang", 0)) nanosleep(&(struct timespec){0, 1000000}, NULL);
    status result = (status)number(-1, "init_status", OK);
    if (result) fprintf(stderr, "stub: init gives %u\n", result);
    else opened++;
    return result;
}

status amdsmi_shut_down(void) { opened = 0; return OK; }
void amdsmi_free_name_value_pairs(void *pairs) { free(pairs); }

status amdsmi_get_lib_version(uint32_t *version) {
    version[0] = (uint32_t)number(-1, "library_major", 26);
    version[1] = (uint32_t)number(-1, "library_minor", 0);
    version[2] = 2;
    return OK;
}

status amdsmi_get_socket_handles(uint32_t *count, handle *out) {
    ENTER(NULL);
    uint32_t gpus = (uint32_t)number(-1, "gpus", 1);
    for (uint32_t i = 0; out && i < gpus && i < *count; i++) out[i] = &places[i];
    *count = gpus;
    return OK;
}

status amdsmi_get_processor_handles(handle socket, uint32_t *count, handle *out) {
    ENTER(socket);
    if (out) out[0] = socket;
    *count = 1;
    return OK;
}

static status text(handle h, const char *function, const char *key, char *out, size_t size) {
    int gpu;
    char value[LINE];
    status failed = enter(h, function, &gpu);
    if (failed) return failed;
    if (!look_up(gpu, key, value)) return NOT_SUPPORTED;
    snprintf(out, size, "%s", value);
    return OK;
}

status amdsmi_get_gpu_device_uuid(handle h, uint32_t *size, char *out) { return text(h, __func__, "uuid", out, *size); }
status amdsmi_get_gpu_compute_partition(handle h, char *out, uint32_t size) { return text(h, __func__, "compute", out, size); }
status amdsmi_get_gpu_memory_partition(handle h, char *out, uint32_t size) { return text(h, __func__, "memory", out, size); }

status amdsmi_get_gpu_device_bdf(handle h, uint64_t *out) { /* domain:48 bus:8 device:5 function:3 */
    ENTER(h);
    *out = number(gpu, "bus", 0) << 8 | number(gpu, "function", 0);
    return OK;
}

status amdsmi_get_gpu_virtualization_mode(handle h, uint32_t *out) {
    ENTER(h);
    *out = (uint32_t)number(gpu, "virtualization", 1);
    return OK;
}

#include "layout.h"

status amdsmi_get_gpu_process_list(handle h, uint32_t *count, char *out) {
    ENTER(h);
    status known = fill(gpu, "proc_info", proc_info, COUNT(proc_info), proc_info_size, out);
    *count = known == OK;
    return OK;
}

status amdsmi_get_gpu_bad_page_info(handle h, uint32_t *count, void *out) { /* "bad_pages": how many */
    ENTER(h);
    uint64_t pages = number(gpu, "bad_pages", UINT64_MAX);
    if (pages == UINT64_MAX) return NOT_SUPPORTED;
    *count = (uint32_t)pages; /* what they are is left as it was: only their number is asked for */
    (void)out;
    return OK;
}

status amdsmi_get_gpu_metrics_info(handle h, char *out) { /* "grown_bytes": a newer library's structure is longer */
    ENTER(h);
    memset(out + gpu_metrics_size, 0xAA, number(gpu, "grown_bytes", 0));
    return fill(gpu, "gpu_metrics", gpu_metrics, COUNT(gpu_metrics), gpu_metrics_size, out);
}
