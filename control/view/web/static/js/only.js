// The switch that leaves out flows for no service, and their number.

import { h, setText } from './dom.js';
import { chosen, servicesOnly, withServicesOnly } from './filter.js';
import { plural } from './format.js';
import { stream } from './stream.js';

export class ServicesSwitch {
  /** changed is called with the next filters. */
  constructor(changed) {
    this.element = h('button', { type: 'button', class: 'button', id: 'services-only', onclick: () => changed(withServicesOnly(this.filters, !servicesOnly(this.filters))) }, 'Services only');
    this.leftOut = h('p', { class: 'hint', id: 'left-out', role: 'status' });
  }

  /** show shows the filters. */
  show(filters) {
    this.filters = filters;
    const off = chosen(filters);
    this.element.disabled = off;
    this.element.setAttribute('aria-pressed', String(servicesOnly(filters)));
    this.element.title = off ? 'Disabled by the filter on verdict or reason' : 'Leave out flows for no service, which pass unchanged';
    this.draw();
  }

  draw() {
    setText(this.leftOut, stream.leftOut > 0 ? `${plural(stream.leftOut, 'flow')} for no service left out` : '');
  }
}
