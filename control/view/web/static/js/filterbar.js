// The filter bar: chips, and a combobox with suggestions.

import { h, icon, replace } from './dom.js';
import { chipsOf, fields, withFilter, withoutFilter } from './filter.js';

export class FilterBar {
  /** seen provides suggestions; changed is called with the new filters. */
  constructor(seen, changed) {
    this.seen = seen;
    this.changed = changed;
    this.filters = new URLSearchParams();
    this.active = -1;
    this.chips = h('div', { class: 'chips' });
    this.input = h('input', {
      id: 'filter', type: 'text', role: 'combobox', autocomplete: 'off', spellcheck: 'false', 'aria-label': 'Filter flows',
      'aria-expanded': 'false', 'aria-controls': 'suggestions', 'aria-autocomplete': 'list', placeholder: 'Filter: service, pod, address, state …',
      oninput: () => this.suggest(), onfocus: () => this.suggest(), onblur: () => this.shut(), onkeydown: (e) => this.key(e),
    });
    this.list = h('ul', { id: 'suggestions', role: 'listbox', class: 'suggestions', 'aria-label': 'Suggestions', hidden: true });
    this.problem = h('p', { class: 'problem', role: 'alert', hidden: true });
    this.element = h('div', { class: 'filterbar' },
      h('div', { class: 'filterfield', onclick: (e) => { if (e.target === e.currentTarget) this.input.focus(); } },
        icon('search'), this.chips, this.input, h('kbd', { 'aria-hidden': 'true' }, '/')),
      this.list, this.problem);
  }

  /** show shows the filters. */
  show(filters) {
    this.filters = filters;
    const chips = chipsOf(filters).map(([field, value]) => h('span', { class: 'chip' }, h('span', { class: 'field' }, field), h('span', { class: 'of' }, value),
      h('button', { type: 'button', 'aria-label': `Remove the filter ${field} ${value}`, onclick: () => this.changed(withoutFilter(this.filters, field, value)) }, icon('close'))));
    replace(this.chips, chips);
    this.input.placeholder = chips.length > 0 ? 'and …' : 'Filter: service, pod, address, state …';
  }

  fail(text) {
    this.problem.hidden = !text;
    this.problem.textContent = text;
  }

  suggest() {
    const found = this.seen.suggest(this.input.value);
    this.found = found;
    this.active = -1;
    replace(this.list, found.map((f, i) => h('li', {
      id: `suggestion-${i}`, role: 'option', 'aria-selected': 'false',
      // Before the input loses the focus.
      onmousedown: (e) => { e.preventDefault(); this.take(f); },
    }, h('span', { class: 'field' }, f.field), f.value ? h('span', { class: 'of' }, f.value) : h('span', { class: 'about' }, fields[f.field]))));
    this.open(found.length > 0);
  }

  open(is) {
    this.list.hidden = !is;
    this.input.setAttribute('aria-expanded', String(is));
    if (!is) this.input.removeAttribute('aria-activedescendant');
  }

  shut() {
    this.open(false);
    this.active = -1;
  }

  move(by) {
    if (this.list.hidden) this.suggest();
    const n = this.list.children.length;
    if (n === 0) return;
    this.list.children[this.active]?.setAttribute('aria-selected', 'false');
    this.active = this.active < 0 && by < 0 ? n - 1 : (this.active + by + n) % n;
    const option = this.list.children[this.active];
    option.setAttribute('aria-selected', 'true');
    option.scrollIntoView({ block: 'nearest' });
    this.input.setAttribute('aria-activedescendant', option.id);
  }

  key(e) {
    if (e.key === 'ArrowDown' || e.key === 'ArrowUp') {
      e.preventDefault();
      this.move(e.key === 'ArrowDown' ? 1 : -1);
    } else if (e.key === 'Enter') {
      e.preventDefault();
      this.enter();
    } else if (e.key === 'Escape') {
      e.stopPropagation();
      if (this.list.hidden || !this.input.value) this.input.blur();
      else { this.input.value = ''; this.shut(); }
    } else if (e.key === 'Backspace' && this.input.value === '') {
      const last = chipsOf(this.filters).at(-1);
      if (last) this.changed(withoutFilter(this.filters, ...last));
    }
  }

  /** enter takes the selected suggestion, else the typed FIELD:VALUE, else the best suggestion. */
  enter() {
    if (this.active >= 0) return this.take(this.found[this.active]);
    const text = this.input.value.trim();
    const colon = text.indexOf(':');
    const field = colon > 0 ? text.slice(0, colon).toLowerCase() : '';
    if (fields[field] && text.length > colon + 1) return this.take({ field, value: text.slice(colon + 1).trim() });
    const best = (this.found ?? []).find((f) => f.value);
    if (text && best) return this.take(best);
    if (text) this.fail(`“${text}” matches no flow. Add a field: ${Object.keys(fields).slice(0, 5).map((f) => `${f}:${text}`).join(', ')} …`);
  }

  take({ field, value }) {
    this.fail('');
    if (!value) {
      this.input.value = `${field}:`;
      this.suggest();
      return;
    }
    this.input.value = '';
    this.shut();
    this.changed(withFilter(this.filters, field, value));
  }
}
