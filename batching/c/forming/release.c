/* When a batch leaves, and how requests are divided: a copy of batching/forming/release.py. */
#include "forming.h"

static int64_t least(int64_t a, int64_t b) { return b < a ? b : a; }

static int64_t most(int64_t a, int64_t b) { return b > a ? b : a; }

/* Rounded down; the divisor is positive. */
static int64_t floor_div(int64_t number, int64_t by) {
    return number / by - (number % by < 0);
}

/* Whether there are as many as are worth a batch, or as fit. */
static bool enough(uint64_t queued, double threshold, uint64_t capacity) {
    return (double)queued >= (threshold < (double)capacity ? threshold : (double)capacity);
}

bool shunter_forming_should_release(
    uint64_t queued, uint64_t oldest_wait_us, bool has_deadline, int64_t slack_us,
    double threshold, uint64_t max_wait_us, uint64_t free_capacity, uint64_t predicted_us,
    uint64_t margin_us) {
    if (queued == 0 || free_capacity == 0) {
        return false;
    }
    if (enough(queued, threshold, free_capacity) || oldest_wait_us >= max_wait_us) {
        return true;
    }
    return has_deadline && slack_us - (int64_t)predicted_us <= (int64_t)margin_us;
}

uint64_t shunter_forming_wake_after_us(
    uint64_t oldest_wait_us, bool has_deadline, int64_t slack_us, uint64_t max_wait_us,
    uint64_t predicted_us, uint64_t margin_us) {
    int64_t wake = (int64_t)max_wait_us - (int64_t)oldest_wait_us;
    if (has_deadline) {
        wake = least(wake, slack_us - (int64_t)predicted_us - (int64_t)margin_us);
    }
    return (uint64_t)most(0, wake);
}

bool shunter_forming_may_send_ahead(
    uint32_t queued, double threshold, uint32_t cap, uint32_t in_flight, uint32_t ahead_limit,
    uint32_t free_workers, bool strict, bool running_strict, bool strict_traffic) {
    return queued > 0 && free_workers == 0 && in_flight >= 1 && in_flight <= ahead_limit &&
           ((strict && running_strict) || !strict_traffic) && enough(queued, threshold, cap);
}

/*
 * The next in order of falling caps, equal ones in theirs, after ``last``; ``count`` stands for none.
 */
static uint32_t next_largest(const uint32_t *caps, uint32_t count, uint32_t last) {
    uint32_t found = count;
    for (uint32_t i = 0; i < count; i++) {
        const bool later = last == count || caps[i] < caps[last] ||
                           (caps[i] == caps[last] && i > last);
        if (later && (found == count || caps[i] > caps[found])) {
            found = i;
        }
    }
    return found;
}

void shunter_forming_split(
    uint32_t queued, const uint32_t *caps, uint32_t count, uint32_t *sizes) {
    uint64_t remaining_caps = 0;
    for (uint32_t i = 0; i < count; i++) {
        sizes[i] = 0;
        remaining_caps += caps[i];
    }
    uint64_t remaining = queued < remaining_caps ? queued : remaining_caps;
    for (uint32_t at = next_largest(caps, count, count); at < count && remaining;
         at = next_largest(caps, count, at)) {
        const uint64_t size = (remaining * caps[at] + remaining_caps - 1) / remaining_caps;
        sizes[at] = size < caps[at] ? (uint32_t)size : caps[at];
        remaining -= sizes[at];
        remaining_caps -= caps[at];
    }
}

static uint32_t size_within(int64_t limit_ns, uint32_t cap, struct shunter_latency_line line) {
    const int64_t left = limit_ns - line.fixed_ns;
    if (left < 0) {
        return 0;
    }
    return line.per_request_ns > 0 ? (uint32_t)least(cap, left / line.per_request_ns) : cap;
}

/* The sizes with which all answer within a time; how many requests that are. */
static uint64_t sizes_within(
    int64_t limit_ns, const uint32_t *caps, const struct shunter_latency_line *lines,
    uint32_t count, uint32_t *sizes) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sizes[i] = size_within(limit_ns, caps[i], lines[i]);
        sum += sizes[i];
    }
    return sum;
}

void shunter_forming_split_by_latency(
    uint32_t queued, const uint32_t *caps, const struct shunter_latency_line *lines,
    uint32_t count, uint32_t *sizes) {
    uint64_t wanted = 0;
    int64_t low = 0, high = 0;
    for (uint32_t i = 0; i < count; i++) {
        wanted += caps[i];
        high = most(high, shunter_latency_ns(lines[i], caps[i]));
    }
    wanted = queued < wanted ? queued : wanted;
    while (low < high) { // the shortest time in which all that is wanted can be done
        const int64_t middle = low + (high - low) / 2;
        if (sizes_within(middle, caps, lines, count, sizes) >= wanted) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    uint64_t surplus = sizes_within(low, caps, lines, count, sizes) - wanted;
    for (uint32_t i = count; i-- > 0;) {
        const uint32_t less = surplus < sizes[i] ? (uint32_t)surplus : sizes[i];
        sizes[i] -= less;
        surplus -= less;
    }
}

uint32_t shunter_forming_staggered_size(
    uint32_t cap, struct shunter_latency_line line, const int64_t *busy_ns, uint32_t count) {
    const int64_t whole = shunter_latency_ns(line, cap), parts = 5 * ((int64_t)count + 1);
    // 4 * whole / parts, which might overflow
    const int64_t gap = whole / parts * 4 + whole % parts * 4 / parts;
    int64_t end = whole;
    for (uint32_t i = 0; i < count; i++) {
        const int64_t apart = whole - busy_ns[i];
        if (apart < gap && -apart < gap) {
            end = least(end, busy_ns[i] - gap);
        }
    }
    if (end >= whole || line.per_request_ns == 0) {
        return cap;
    }
    const int64_t fitting = floor_div(end - line.fixed_ns, line.per_request_ns);
    return (uint32_t)most(((int64_t)cap + 1) / 2, least(cap, fitting));
}

static uint32_t larger(uint32_t a, uint32_t b) { return b > a ? b : a; }

static uint32_t rows_at(const uint32_t *rows, uint32_t i) { return rows ? rows[i] : 1; }

/*
 * The others run after a batch of ``take``, or on the worker that is free by then: whether the most
 * urgent of them is in time.
 */
static bool rest_in_time(
    int64_t slack_ns, uint32_t take, uint32_t rest, struct shunter_latency_line line,
    int64_t next_free_ns) {
    const int64_t starts_ns = least(shunter_latency_ns(line, take), next_free_ns);
    return slack_ns >= starts_ns + shunter_latency_ns(line, rest);
}

struct shunter_cut shunter_forming_fit_deadlines(
    const int64_t *slacks_ns, const uint32_t *rows, uint32_t count, uint32_t waiting,
    uint32_t size, uint32_t cap, struct shunter_latency_line line, int64_t next_free_ns) {
    const int64_t slack = slacks_ns[0], per_request = line.per_request_ns;
    const uint32_t first = rows_at(rows, 0);
    const bool hopeless = slack < shunter_latency_ns(line, first);
    if (slack >= shunter_latency_ns(line, larger(size, first)) ||
        (next_free_ns == 0 && hopeless)) {
        return (struct shunter_cut){0, size};
    }
    const int64_t fitting = per_request > 0 ? floor_div(slack - line.fixed_ns, per_request) : 1;
    const uint32_t take = (uint32_t)most(first, least(size, fitting));
    const struct shunter_cut shorter = {0, take};
    uint32_t taken = 0, used = 0;
    while (taken < count && used + rows_at(rows, taken) <= take) {
        used += rows_at(rows, taken++);
    }
    if (next_free_ns == 0 || waiting <= used || taken >= count) {
        return shorter;
    }
    const uint32_t rest = (uint32_t)least(waiting - used, cap);
    if (!hopeless &&
        rest_in_time(
            slacks_ns[taken], used, larger(rest, rows_at(rows, taken)), line, next_free_ns)) {
        return shorter;
    }
    for (uint32_t skip = 1, skipped = 0; skip < count; skip++) {
        skipped += rows_at(rows, skip - 1);
        const uint32_t left =
            larger((uint32_t)least(cap, waiting - skipped), rows_at(rows, skip));
        if (slacks_ns[skip] >= shunter_latency_ns(line, left)) {
            return hopeless || left > used ? (struct shunter_cut){skip, left} : shorter;
        }
    }
    return shorter;
}

bool shunter_forming_is_too_late(int64_t now_ns, int64_t deadline_ns, int64_t soonest_ns) {
    return deadline_ns < now_ns + soonest_ns;
}

int64_t shunter_forming_too_late_at_ns(int64_t now_ns, int64_t deadline_ns, int64_t least_ns) {
    return deadline_ns - least_ns > now_ns ? deadline_ns - least_ns : deadline_ns;
}

int64_t shunter_forming_predicted_wait_ns(
    uint64_t ahead, uint64_t capacity, int64_t batch_ns, int64_t busy_ns) {
    return busy_ns + (int64_t)(ahead / capacity) * batch_ns;
}
