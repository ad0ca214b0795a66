/* Which segments come next, if a client goes on. */
#include "core_parts.h"

void shunter_core_forecast(
    const struct shunter_core *core, uint32_t id, uint64_t req_id,
    struct shunter_forecast *forecast) {
    memset(forecast, 0, sizeof *forecast);
    struct session *session = find(core, id);
    if (!session || session->closing) {
        return;
    }
    const struct call *call = call_of(session, req_id);
    const struct function *function = function_of(core, session);
    forecast->plan = &session->inputs;
    forecast->function = function;
    forecast->free = function->free;
    forecast->behind = shunter_behind(session->protect);
    if (call->req_id == req_id && call->state == RECEIVING) {
        forecast->call = call;
        forecast->entry = (uint32_t)call->entry;
    } else if (function->free) {
        forecast->entry = next_free(function, function->next);
    }
}

bool shunter_forecast_next(
    struct shunter_forecast *forecast, uint32_t *entry, struct shunter_segment *segment) {
    const struct shunter_plan *plan = forecast->plan;
    const struct function *function = forecast->function;
    const struct call *call = forecast->call;
    while (call && forecast->seq < plan->count &&
           call->received[forecast->seq / 64] >> (forecast->seq % 64) & 1) {
        forecast->seq++;
    }
    if (call && forecast->seq == plan->count) {
        forecast->call = call = NULL;
        forecast->seq = 0;
        if (forecast->free) {
            forecast->entry = next_free(function, function->next);
        }
    }
    if (!plan || (!call && !forecast->free)) {
        return false;
    }
    *entry = forecast->entry;
    *segment = shunter_place(plan, forecast->seq++);
    if (!call && forecast->seq == plan->count) {
        forecast->seq = 0;
        if (--forecast->free) {
            const uint32_t next = forecast->entry + 1;
            forecast->entry = next_free(function, next == function->entries ? 0 : next);
        }
    }
    return true;
}

