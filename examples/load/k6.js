// The same load with k6, open loop: k6 run -e HOST=http://127.0.0.1:8080 examples/load/k6.js
import http from "k6/http";
import { check } from "k6";

const host = __ENV.HOST || "http://127.0.0.1:8080";
const model = __ENV.MODEL || "digits";
const body = JSON.stringify({ image: Array(8).fill([0, 3, 15, 16, 8, 0, 0, 0]) });

function rate(perSecond, exec) {
  return { executor: "constant-arrival-rate", rate: perSecond, timeUnit: "1s", duration: "30s", preAllocatedVUs: 50, maxVUs: 500, exec };
}

export const options = {
  scenarios: { strict: rate(50, "strict"), best_effort: rate(300, "bestEffort") },
  thresholds: { "http_req_duration{scenario:strict}": ["p(99)<100"], "checks{scenario:strict}": ["rate>0.99"] },
};

function ask(terms) {
  const headers = { "content-type": "application/json", ...terms };
  const answer = http.post(`${host}/predictions/${model}`, body, { headers });
  check(answer, { "answered": (found) => found.status === 200 });
}

export function strict() {
  ask({ "x-shunter-class": "strict", "x-shunter-deadline-ms": "100" });
}

export function bestEffort() {
  ask({ "x-shunter-class": "best-effort" });
}
