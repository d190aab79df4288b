// The form that sends a request from a host of a lab, and then shows its flow.

import { topology } from './api.js';
import { h, replace } from './dom.js';
import { requester } from './request.js';
import { services } from './suggest.js';

/** named is a service port as a destination: by its name, as pods find it. */
const named = (sv) => `${sv.protocol === 'UDP' ? 'udp://' : ''}${sv.name}.${sv.namespace}:${sv.port}`;

export class Sender {
  /** show gets the address of the flows of a request that was sent. */
  constructor(show) {
    this.abort = new AbortController();
    this.from = h('select', { id: 'send-from' });
    this.to = h('input', { type: 'text', id: 'send-to', list: 'send-names', autocomplete: 'off', spellcheck: 'false', placeholder: 'a service, web.shop:80, or an address with a port' });
    this.names = h('datalist', { id: 'send-names' });
    const button = requester('Send', () => {
      const to = this.to.value.trim();
      if (!to) this.to.focus();
      return to ? { from: this.from.value, to } : null;
    }, this.abort.signal, show);
    this.element = h('details', { class: 'send', hidden: true, ontoggle: () => this.load() },
      h('summary', null, 'Send a request'),
      h('form', { onsubmit: (e) => { e.preventDefault(); button.querySelector('.button').click(); } },
        h('label', { class: 'choose' }, h('span', null, 'From'), this.from), h('label', { class: 'choose wide' }, h('span', null, 'To'), this.to), this.names, button));
    topology().then((t) => {
      this.element.hidden = !t.canRequest;
      replace(this.from, [...t.pods, ...t.hosts, ...t.nodes].map((x) => h('option', { value: x.name }, x.name)));
      const shell = t.pods.find((p) => /\/shell(-|$)/.test(p.name)); // a pod that is there for requests
      if (shell) this.from.value = shell.name;
    }).catch(() => { /* without a form, then */ });
  }

  leave() { this.abort.abort(); }

  /** load fills the suggestions, once they can be seen. */
  async load() {
    if (!this.element.open || this.names.children.length > 0) return;
    try {
      replace(this.names, (await services(this.abort.signal)).filter((sv) => sv.protocol !== 'SCTP').map((sv) => h('option', { value: named(sv) }, sv.service)));
    } catch { /* without suggestions, then */ }
  }
}
