// The list of all services, which may be long: those with flows are requested often, all of them
// rarely and in pages.

import { get, pause, poll } from './api.js';

const PAGE = 500; // services in a request
const BETWEEN = 100; // milliseconds between two pages
const RENEW = 60000; // milliseconds between two lists of all

export const keyOf = (service, endpoint) => `${service.service} ${service.family} ${service.protocol} ${endpoint?.endpoint ?? ''}`;

export class ServiceList {
  constructor() {
    this.abort = new AbortController();
    this.active = []; // with flows, as of the latest response
    this.all = []; // in the order of the API, without the counts of those that are active
    this.whole = false; // all is complete
  }

  leave() { this.abort.abort(); }

  /** follow calls changed with each response, and whether it is about active services: others have no flows. */
  async follow(milliseconds, changed, failed) {
    const { signal } = this.abort;
    poll('/v1/services?active=true', milliseconds, signal, (answer) => {
      this.active = answer.services;
      changed(answer, true);
    }, failed);
    while (!signal.aborted) {
      try {
        await this.load(changed);
      } catch (e) {
        if (signal.aborted) return;
        failed(e);
      }
      await pause(RENEW);
    }
  }

  async load(changed) {
    const list = [];
    for (let after = '';;) {
      const answer = await get(`/v1/services?limit=${PAGE}${after && `&after=${encodeURIComponent(after)}`}`, this.abort.signal);
      // Of endpoints without flows only their existence is shown.
      for (const sv of answer.services) list.push(sv.flows.total > 0 ? sv : { ...sv, endpoints: sv.endpoints.slice(0, 1) });
      if (!this.whole) this.all = list;
      after = answer.next ?? '';
      if (!after) { this.all = list; this.whole = true; }
      changed(answer, false);
      if (!after) return;
      await pause(BETWEEN);
    }
  }

  /** find returns the services with flows that match, and the others, in the order of the API. */
  find(matches) {
    const active = new Set(this.active.map((sv) => keyOf(sv))), others = [], found = this.active.filter(matches);
    for (const sv of this.all) if (matches(sv) && !active.has(keyOf(sv))) (sv.flows.total > 0 ? found : others).push(sv);
    return [found, others];
  }
}
