// A button that sends a real request from a host of a lab.

import { ApiError, post } from './api.js';
import { h, icon, replace } from './dom.js';
import { seconds } from './format.js';
import { link } from './filter.js';

/** requester is a button with its result: a request from a host to an address. question gives { from, to, protocol }, or null if there is none. */
export function requester(label, question, signal) {
  const result = h('span', { class: 'request-result', role: 'status' });
  const button = h('button', { type: 'button', class: 'button', onclick: async () => {
    const q = question();
    if (!q) return;
    button.setAttribute('aria-busy', 'true');
    replace(result, 'sent …');
    try {
      const r = await post('/v1/requests', q, signal);
      const flow = r.source && h('a', { class: 'link', href: link(new URLSearchParams({ source: r.source, destination: q.to, all: 'true' })) }, 'its flow');
      replace(result, h('span', { class: 'pill', 'data-tone': r.error ? 'bad' : 'good' }, r.error || 'answered'), ' ', r.by && h('b', null, r.by), r.error ? ` after ${seconds(r.seconds)} ` : ` in ${seconds(r.seconds)} `, flow);
    } catch (e) {
      if (signal.aborted) return;
      replace(result, h('span', { class: 'problem' }, e instanceof ApiError && e.status === 401 ? 'Sending requests needs the token: see the tab Hold.' : e.message));
    } finally {
      button.removeAttribute('aria-busy');
    }
  } }, icon('play'), label);
  return h('p', { class: 'request' }, button, result);
}
