// A button that sends a real request from a host of a lab.

import { ApiError, post } from './api.js';
import { h, icon, replace } from './dom.js';
import { seconds } from './format.js';
import { link } from './filter.js';

/** flowsOf is the address of the flows of a request, in the flows view; '' if there is none. */
const flowsOf = (q, r) => (r.destination ? link(new URLSearchParams({ source: r.source || q.from, destination: r.destination, all: 'true' })) : '');

/** lookupOf is how a name was looked up, for a title. */
const lookupOf = (l) => (l ? l.queries.map((q) => `${q.name} ${q.type} ${q.answer}`).join(', ') || `${l.name} ${l.addresses.join(' ')}, of /etc/hosts` : null);

/** requester is a button with its result: a request from a host to a name or an address. question gives { from, to, protocol }, or null if there is none. answered gets the address of the request's flows. */
export function requester(label, question, signal, answered) {
  const result = h('span', { class: 'request-result', role: 'status' });
  const button = h('button', { type: 'button', class: 'button', onclick: async () => {
    const q = question();
    if (!q) return;
    button.setAttribute('aria-busy', 'true');
    replace(result, 'sent …');
    try {
      const r = await post('/v1/requests', q, signal);
      const flows = flowsOf(q, r);
      replace(result, h('span', { class: 'pill', 'data-tone': r.error ? 'bad' : 'good' }, r.error || 'answered'), ' ', r.by && h('b', null, r.by), r.error ? ` after ${seconds(r.seconds)} ` : ` in ${seconds(r.seconds)} `, flows && h('a', { class: 'link', href: flows }, 'its flow'),
        r.lookup && h('span', { class: 'hint lookup' }, lookupOf(r.lookup)));
      if (flows) answered?.(flows);
    } catch (e) {
      if (signal.aborted) return;
      replace(result, h('span', { class: 'problem' }, e instanceof ApiError && e.status === 401 ? 'Sending requests needs the token: see the tab Lab.' : e.message));
    } finally {
      button.removeAttribute('aria-busy');
    }
  } }, icon('play'), label);
  return h('p', { class: 'request' }, button, result);
}
