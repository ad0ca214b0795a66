/* See rule.h. */
#include "rule.h"

static uint64_t add(uint64_t left, uint64_t right) {
    return left > UINT64_MAX - right ? UINT64_MAX : left + right;
}

/* When a batch of so many rows would end that began now. */
static uint64_t end_ns(const struct strategy_numbers *numbers, uint64_t rows, uint64_t now_ns) {
    const uint64_t per = numbers->per_row_ns;
    const uint64_t work = per && rows > UINT64_MAX / per ? UINT64_MAX : rows * per;
    return add(add(now_ns, numbers->fixed_ns), work);
}

/* The deadline that a batch has to heed for this request. What is late even alone is late anyway:
 * for its sake no batch is made smaller. */
static uint64_t heeded(
    const struct strategy_numbers *numbers, const struct strategy_candidate *candidate,
    uint64_t now_ns) {
    const bool is_known = numbers->fixed_ns || numbers->per_row_ns;
    if (!is_known || !candidate->deadline_ns ||
        end_ns(numbers, candidate->rows, now_ns) > candidate->deadline_ns) {
        return 0;
    }
    return candidate->deadline_ns;
}

static uint64_t earlier(uint64_t left, uint64_t right) {
    return !left || (right && right < left) ? right : left;
}

bool strategy_includes(
    const struct strategy_numbers *numbers, const struct strategy_batch *batch,
    const struct strategy_candidate *candidate, uint64_t now_ns) {
    if (!batch->rows) {
        return true;
    }
    const uint64_t rows = add(batch->rows, candidate->rows);
    if ((numbers->cap && rows > numbers->cap) ||
        (numbers->apart && candidate->class != batch->class)) {
        return false;
    }
    const uint64_t end = end_ns(numbers, rows, now_ns), own = heeded(numbers, candidate, now_ns);
    /* What the batch cannot keep any more, it need not be sealed for. */
    const bool is_kept_now = end_ns(numbers, batch->rows, now_ns) <= batch->tightest_ns;
    return (!own || end <= own) && (!is_kept_now || end <= batch->tightest_ns);
}

void strategy_include(
    const struct strategy_numbers *numbers, struct strategy_batch *batch,
    const struct strategy_candidate *candidate, uint64_t now_ns) {
    batch->tightest_ns = earlier(
        batch->rows ? batch->tightest_ns : 0, heeded(numbers, candidate, now_ns));
    batch->class = batch->rows ? batch->class : candidate->class;
    batch->rows = add(batch->rows, candidate->rows);
}
