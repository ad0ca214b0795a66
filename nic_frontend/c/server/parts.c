/* Answers in parts: places for them to the workers, and what these have written into them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server_parts.h"

struct shunter_parts *shunter_parts_new(uint32_t entries) {
    struct shunter_parts *parts =
        calloc(1, sizeof *parts + entries * sizeof(struct shunter_part_places));
    if (parts) {
        parts->live = calloc(entries, sizeof *parts->live);
        parts->sent = calloc(entries, sizeof *parts->sent);
    }
    if (parts && !(parts->live && parts->sent)) {
        shunter_parts_free(parts);
        parts = NULL;
    }
    return parts;
}

void shunter_parts_free(struct shunter_parts *parts) {
    if (parts) {
        free(parts->live);
        free(parts->sent);
        free(parts);
    }
}

static _Atomic uint64_t *word(
    const struct shunter_serving *serving, uint32_t entry, uint32_t field) {
    return shunter_entry_word(&serving->served->queue, entry, field);
}

void shunter_parts_ready(const struct shunter_serving *serving, uint32_t entry) {
    if (serving->parts) {
        memset(&serving->parts->of[entry], 0, sizeof serving->parts->of[entry]);
        shunter_set(word(serving, entry, SHUNTER_E_ENTRY_PARTS), 0);
        shunter_set(word(serving, entry, SHUNTER_E_ENTRY_UNWANTED), 0);
        shunter_set(word(serving, entry, SHUNTER_E_ENTRY_GIVEN), 0);
    }
}

void shunter_parts_run(const struct shunter_serving *serving, uint32_t entry) {
    struct shunter_parts *parts = serving->parts;
    if (parts) {
        parts->of[entry].running = true;
        parts->live[parts->count++] = entry;
    }
}

static void wake(const struct shunter_serving *serving, uint32_t entry) {
    if (serving->parts->of[entry].running) {
        shunter_nudge(serving->served, entry);
    }
}

void shunter_parts_sent(const struct shunter_serving *serving, uint32_t entry) {
    if (serving->parts) {
        serving->parts->sent[entry] = serving->server->flushes;
    }
}

void shunter_parts_place(const struct shunter_serving *serving, uint32_t entry, uint32_t place) {
    struct shunter_part_places *of = &serving->parts->of[entry];
    const uint32_t at = of->given % SHUNTER_PARTS_AHEAD;
    if (serving->parts->sent[place] == serving->server->flushes) {
        // An answer of another client may still be sent from there, and the worker writes at once.
        shunter_flush(serving->server);
    }
    of->places[at] = place;
    shunter_set(word(serving, entry, SHUNTER_E_ENTRY_PLACES + 8 * at), place);
    // Sequentially consistent, as the worker's sleep is: one of the two sees the other.
    atomic_store(word(serving, entry, SHUNTER_E_ENTRY_GIVEN), ++of->given);
    wake(serving, entry);
}

void shunter_parts_unwanted(const struct shunter_serving *serving, uint32_t entry) {
    atomic_store(word(serving, entry, SHUNTER_E_ENTRY_UNWANTED), 1);
    wake(serving, entry);
}

/* What its worker says is there, of an entry that runs; the number. */
static uint32_t collect(
    const struct shunter_serving *serving, uint32_t entry, uint64_t now_ns) {
    struct shunter_part_places *of = &serving->parts->of[entry];
    const uint64_t parts = shunter_get(word(serving, entry, SHUNTER_E_ENTRY_PARTS));
    const uint64_t said = parts & ~(SHUNTER_PARTS_ARE_OVER | SHUNTER_PARTS_ARE_LATE);
    // It is the worker's word: never believe that it has more than it had places for.
    const uint32_t given = of->given, there = said < given ? (uint32_t)said : given;
    uint32_t count = 0;
    for (; of->seen < there; count++) {
        const uint32_t place = of->places[of->seen++ % SHUNTER_PARTS_AHEAD];
        const uint64_t bytes = shunter_get(word(serving, place, SHUNTER_E_ENTRY_RESULT_BYTES));
        shunter_core_part(
            serving->server->core, serving->func_id, entry,
            bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX, now_ns);
    }
    if (parts & SHUNTER_PARTS_ARE_OVER && said == of->seen && !of->over) {
        of->over = true;
        const uint16_t status =
            parts & SHUNTER_PARTS_ARE_LATE ? SHUNTER_STATUS_TOO_SLOW : SHUNTER_STATUS_END;
        shunter_core_parts_over(serving->server->core, serving->func_id, entry, status, now_ns);
        count++;
    }
    if (count) {
        shunter_made_progress(serving->served, entry, now_ns);
    }
    return count;
}

void shunter_parts_end(const struct shunter_serving *serving, uint32_t entry, uint64_t now_ns) {
    struct shunter_parts *parts = serving->parts;
    if (!parts || !parts->of[entry].running) {
        return;
    }
    collect(serving, entry, now_ns); // what it wrote before it said that it is done
    parts->of[entry].running = false;
    for (uint32_t i = 0; i < parts->count; i++) {
        if (parts->live[i] == entry) {
            parts->live[i] = parts->live[--parts->count];
            return;
        }
    }
}

uint32_t shunter_parts_collect(const struct shunter_serving *serving, uint64_t now_ns) {
    uint32_t count = 0;
    for (uint32_t i = 0; serving->parts && i < serving->parts->count; i++) {
        count += collect(serving, serving->parts->live[i], now_ns);
    }
    return count;
}
