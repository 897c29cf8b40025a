/* Runs policy_raw on all combinations of the values in the file "points": how many each number of the observation has,
   then their bits. The argument is the number of combinations to run. Prints the ends of each output, and for each grid how
   many combinations it clips, and the first of them. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t clips[GRIDS], firsts[GRIDS], point;

/* Clips codes, which a call has left unclipped by one, as the call alone would. */
static void clipped(int grid, int n, int low, int high, int16_t *y) {
    int i, found = 0;
    for (i = 0; i < n; i++) {
        found |= y[i] > high || y[i] < low;
        y[i] = (int16_t)(y[i] > high ? high : y[i] < low ? low : y[i]);
    }
    if (found && !clips[grid]++) firsts[grid] = point;
}

#include "policy.c"

static uint32_t values[POLICY_OBSERVATION][65536];

int main(int count, char **arguments) {
    uint32_t x[POLICY_OBSERVATION], sizes[POLICY_OBSERVATION], y[POLICY_RAW], low[POLICY_RAW], high[POLICY_RAW];
    const uint64_t end = count == 2 ? strtoull(arguments[1], 0, 10) : 0;
    uint64_t rest;
    FILE *points = fopen("points", "rb");
    int i;
    if (!end || !points || fread(sizes, sizeof sizes, 1, points) != 1) return 2;
    for (i = 0; i < POLICY_OBSERVATION; i++)
        if (sizes[i] > 65536 || fread(values[i], 4, sizes[i], points) != sizes[i]) return 2;
    for (i = 0; i < POLICY_RAW; i++) low[i] = 0x7f800000u, high[i] = 0xff800000u;
    for (point = 0; point < end; point++) {
        for (rest = point, i = POLICY_OBSERVATION; i--; rest /= sizes[i]) x[i] = values[i][rest % sizes[i]];
        if (policy_raw(x, y)) return 3;
        for (i = 0; i < POLICY_RAW; i++) {
            if (less(y[i], low[i])) low[i] = y[i];
            if (less(high[i], y[i])) high[i] = y[i];
        }
    }
    for (i = 0; i < POLICY_RAW; i++) printf("%" PRIu32 " %" PRIu32 "\n", low[i], high[i]);
    for (i = 0; i < GRIDS; i++) printf("%" PRIu64 " %" PRIu64 "\n", clips[i], firsts[i]);
    return 0;
}
