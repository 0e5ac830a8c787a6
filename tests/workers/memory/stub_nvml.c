/* NVIDIA's management library without a GPU: answers come from the variables below, which a test sets. */
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };
enum { MOST = 4, CLOCK_SM = 1, MEMORY_V2 = 0x02000028 };

struct gpu {
    char uuid[96];
    char name[96];
    unsigned long long total, reserved, used; /* used: without what the driver reserves */
    unsigned long long reasons, energy; /* millijoules */
    unsigned int power, power_limit, utilisation; /* milliwatts, percent */
    unsigned int clock, application_clock; /* MHz, of the SMs */
    int status, memory_status, v2_status, sensor_status; /* 0, or the error of these queries */
};
struct gpu stub_gpus[MOST];
unsigned int stub_count = 0;
int stub_loaded = 0; /* whether there is a driver */
int stub_opened = 0; /* nvmlInit less nvmlShutdown */
int stub_lost = 0;   /* the error of every query once the driver has died */

static int failed(struct gpu *gpu, int status) {
    if (stub_opened < 1) return UNINITIALIZED;
    if (stub_lost) return stub_lost;
    return gpu && gpu->status ? gpu->status : status;
}

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    if (!stub_loaded) return DRIVER_NOT_LOADED;
    stub_opened++;
    return SUCCESS;
}

int nvmlShutdown(void) {
    int status = failed(0, SUCCESS);
    if (stub_opened > 0) stub_opened--;
    return status;
}

const char *nvmlErrorString(int status) { (void)status; return "an error of the stub"; }

int nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    strncpy(version, "580.0", length);
    return failed(0, SUCCESS);
}

int nvmlDeviceGetCount_v2(unsigned int *count) { *count = stub_count; return failed(0, SUCCESS); }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct gpu **handle) {
    if (index >= stub_count) return INVALID_ARGUMENT;
    *handle = &stub_gpus[index];
    return failed(*handle, SUCCESS);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct gpu **handle) {
    for (unsigned int index = 0; index < stub_count; index++)
        if (!strcmp(stub_gpus[index].uuid, uuid)) return nvmlDeviceGetHandleByIndex_v2(index, handle);
    return failed(0, NOT_FOUND);
}

int nvmlDeviceGetUUID(struct gpu *gpu, char *uuid, unsigned int length) {
    strncpy(uuid, gpu->uuid, length);
    return failed(gpu, SUCCESS);
}

int nvmlDeviceGetName(struct gpu *gpu, char *name, unsigned int length) {
    strncpy(name, gpu->name, length);
    return failed(gpu, SUCCESS);
}

int nvmlDeviceGetMemoryInfo(struct gpu *gpu, unsigned long long *info) { /* total, free, used */
    info[0] = gpu->total;
    info[1] = gpu->total - gpu->used - gpu->reserved;
    info[2] = gpu->used + gpu->reserved;
    return failed(gpu, gpu->memory_status);
}

struct memory_v2 { unsigned int version; unsigned long long total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(struct gpu *gpu, struct memory_v2 *info) {
    if (info->version != MEMORY_V2) return INVALID_ARGUMENT;
    info->total = gpu->total;
    info->reserved = gpu->reserved;
    info->free = gpu->total - gpu->used - gpu->reserved;
    info->used = gpu->used;
    return failed(gpu, gpu->memory_status ? gpu->memory_status : gpu->v2_status);
}

int nvmlDeviceGetUtilizationRates(struct gpu *gpu, unsigned int *rates) { /* gpu, memory */
    rates[0] = gpu->utilisation;
    rates[1] = 0;
    return failed(gpu, gpu->sensor_status);
}

int nvmlDeviceGetPowerUsage(struct gpu *gpu, unsigned int *milliwatts) {
    *milliwatts = gpu->power;
    return failed(gpu, gpu->sensor_status);
}

int nvmlDeviceGetTotalEnergyConsumption(struct gpu *gpu, unsigned long long *millijoules) {
    *millijoules = gpu->energy;
    return failed(gpu, gpu->sensor_status);
}

int nvmlDeviceGetEnforcedPowerLimit(struct gpu *gpu, unsigned int *milliwatts) {
    *milliwatts = gpu->power_limit;
    return failed(gpu, gpu->sensor_status);
}

int nvmlDeviceGetClockInfo(struct gpu *gpu, unsigned int type, unsigned int *mhz) {
    *mhz = type == CLOCK_SM ? gpu->clock : 0;
    return failed(gpu, gpu->sensor_status);
}

int nvmlDeviceGetApplicationsClock(struct gpu *gpu, unsigned int type, unsigned int *mhz) {
    *mhz = type == CLOCK_SM ? gpu->application_clock : 0;
    return failed(gpu, gpu->sensor_status);
}

int nvmlDeviceGetCurrentClocksEventReasons(struct gpu *gpu, unsigned long long *reasons) {
    *reasons = gpu->reasons;
    return failed(gpu, gpu->sensor_status);
}
