/*
 * Sets of workers, driven by events on its input; what they say is its output. Numbers name members.
 *
 *   J member set model [yields]  it joins            L member now     it leaves
 *   V member slices model        it takes turns there
 *   O strict best_effort exclusive                   how turns are taken
 *   A member class since ageing now [deadline]       asks: behind how many, or -1
 *   G member class now           gives               S member strict best_effort now   settles
 *   E member done now had        its batch has ended: whether it is known when it began, and when
 *   F member                     since when it is the first
 */
#include <inttypes.h>
#include <stdio.h>

#include "hold_line.h"
#include "sets.h"
#include "turns.h"

#define MEMBERS 16

static struct shunter_member *members[MEMBERS];
static int numbers[MEMBERS], models[MEMBERS];

static bool is_over;

static void ring(void *bell) {
    if (!is_over) {
        printf("call %d\n", *(const int *)bell);
    }
}

static void event(struct shunter_sets *sets, const char *line) {
    struct shunter_want want = {.deadline_ns = SHUNTER_SET_NO_DEADLINE};
    struct shunter_slice_set slices = {{0}};
    uint64_t now = 0, done = 0, began = 0;
    unsigned at, class = 0, number, first = 0, second;
    if (sscanf(line, "J %u %u %u %u", &at, &number, &class, &first) >= 3) {
        const struct shunter_wake wake = {ring, &numbers[at]};
        numbers[at] = (int)at;
        members[at] = shunter_set_join(sets, number, &models[class], first == 1, wake);
    } else if (sscanf(line, "V %u %" SCNu64 " %u", &at, &slices.words[2], &class) == 3) {
        const struct shunter_wake wake = {ring, &numbers[at]};
        numbers[at] = (int)at;
        members[at] = shunter_turns_join(sets, &models[class], wake, &slices);
    } else if (sscanf(line, "O %u %u %u", &first, &second, &number) == 3) {
        shunter_turns_obey(sets, (struct shunter_turn_rules){first, second, number == 1});
    } else if (sscanf(line, "L %u %" SCNu64, &at, &now) == 2) {
        shunter_set_leave(members[at], now);
        members[at] = NULL;
    } else if (
        sscanf(
            line, "A %u %u %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &at, &class,
            &want.since_ns, &want.ageing_ns, &now, &want.deadline_ns) >= 5) {
        want.class = (uint8_t)class;
        printf("ask %d\n", shunter_set_ask(members[at], &want, now));
    } else if (sscanf(line, "G %u %u %" SCNu64, &at, &class, &now) == 3) {
        shunter_set_give(members[at], (uint8_t)class, now);
    } else if (sscanf(line, "S %u %u %u %" SCNu64, &at, &first, &second, &now) == 4) {
        const bool waits[] = {first, second};
        shunter_set_settle(members[at], waits, now);
    } else if (
        sscanf(
            line, "E %u %" SCNu64 " %" SCNu64 " %" SCNu64 " %u", &at, &done, &now, &began,
            &class) >= 4) {
        const bool is_known = shunter_set_end(members[at], (uint8_t)class, done, now, &began);
        printf("end %d %" PRIu64 "\n", is_known, began);
    } else if (sscanf(line, "F %u", &at) == 1) {
        printf("first %" PRIu64 "\n", shunter_set_first_since_ns(members[at]));
    }
}

int main(void) {
    struct shunter_sets *sets = shunter_sets_new();
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        event(sets, line);
    }
    is_over = true;
    for (int i = 0; i < MEMBERS; i++) {
        if (members[i]) {
            shunter_set_leave(members[i], 0);
        }
    }
    shunter_sets_free(sets);
    return 0;
}
