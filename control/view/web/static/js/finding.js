// One finding, as a row that opens.

import { h, icon } from './dom.js';

const tones = { error: 'bad', warning: 'warn', note: 'pass' };

/** whyLink is the address of the view that answers a question. */
export const whyLink = (q) => `#/why?${new URLSearchParams(Object.entries(q).filter(([, v]) => v))}`;

/** objectLink is the view of an object, if there is one. */
function objectLink(object) {
  const service = /^Service ([^/ ]+)\/([^/ ]+)$/.exec(object ?? '');
  return service && `#/services/${encodeURIComponent(service[1])}/${encodeURIComponent(service[2])}`;
}

/** finding is a list item. canWhy: the view Why answers for its example. */
export function finding(f, { canWhy, open }) {
  const r = f.example?.record;
  const object = objectLink(f.object);
  return h('li', { class: 'finding', 'data-code': f.code, 'data-tone': f.ignored ? 'pass' : tones[f.severity] },
    h('details', { 'data-key': f.code + f.text, open },
      h('summary', null, h('span', { class: 'pill' }, f.ignored ? `ignored ${f.severity}` : f.severity), h('span', { class: 'text' }, f.text), h('span', { class: 'address' }, f.code)),
      h('dl', { class: 'facts' },
        f.object && [h('dt', null, 'Look at'), h('dd', null, object ? h('a', { class: 'link', href: object }, f.object) : f.object, f.field && h('code', null, ` ${f.field}`))],
        h('dt', null, 'Do'), h('dd', null, f.do),
        f.ignored && [h('dt', null, 'Ignored'), h('dd', null, `by ${f.ignored}`)],
        f.example && [h('dt', null, 'Example'), h('dd', null, f.example.text)]),
      r && canWhy && h('a', { class: 'button small', href: whyLink({ from: r.source, to: r.destination, protocol: r.protocol, node: r.node }) }, icon('why'), 'Why, step by step')));
}
