// What the views Why and Explain share: a form with the question, which is also in the page's address, and the answer beside it.

import { h, icon, replace } from './dom.js';
import { blame } from './form.js';
import { candidates, facts, raw } from './life.js';
import { Picture } from './picture.js';

/** input is a text field with suggestions of a list. */
export const input = (list, placeholder) => h('input', { type: 'text', list, autocomplete: 'off', spellcheck: 'false', placeholder });

/** Inquiry is a view of that kind. Its ask() returns the answer to the question, and its show() shows it. */
export class Inquiry {
  /** inputs are those of the form, by the name in the address; first gets the focus, and last has the question complete. */
  constructor(inputs, first, last, label) {
    Object.assign(this, { inputs, first, last });
    this.abort = new AbortController();
    this.sources = h('datalist', { id: 'sources' });
    this.destinations = h('datalist', { id: 'destinations' });
    this.picture = new Picture(label);
    this.head = h('div', { class: 'headline answer', role: 'status' });
    this.side = h('div', { class: 'side' });
    this.columns = h('div', { class: 'columns' }, this.picture.element, this.side);
    this.number = 0; // of the last question
  }

  /** build makes the element. */
  build({ name, heading, button, fields, invitation, result }) {
    this.name = name;
    this.submit = h('button', { type: 'submit', class: 'button primary' }, button, h('kbd', { 'aria-hidden': 'true' }, '↵'));
    this.form = h('form', { class: 'form', novalidate: true, onsubmit: (e) => { e.preventDefault(); this.remember(); } },
      fields, h('p', { class: 'wrong all', role: 'alert', hidden: true }), this.submit, this.sources, this.destinations);
    this.result = h('div', { class: 'result', hidden: true }, this.head, result, this.columns);
    this.invitation = h('div', { class: 'empty' }, icon(name), invitation);
    this.element = h('section', { class: 'explain', 'aria-labelledby': 'title' },
      h('div', { class: 'question' }, h('h1', { id: 'title' }, heading), this.form), h('div', { class: 'outcome' }, this.invitation, this.result));
  }

  /** update fills in the form from the page's address, and sends the question if it is complete. */
  update({ query }) {
    const q = query.toString();
    if (q === this.query) return true;
    this.query = q;
    for (const [name, element] of Object.entries(this.inputs)) {
      const value = query.get(name) ?? '';
      if (element.type === 'checkbox') element.checked = value === 'true';
      else element.value = name === 'protocol' ? value.toUpperCase() : value;
      if (element.selectedIndex < 0) element.selectedIndex = 0;
    }
    if (query.get(this.last)) this.request();
    else this.inputs[this.first].focus({ preventScroll: true });
    return true;
  }

  keys = { '/': () => this.inputs[this.first].focus() };

  leave() {
    this.abort.abort();
    this.picture.leave();
  }

  /** question is what the form has, without what is empty. */
  question() {
    return Object.fromEntries(Object.entries(this.inputs).map(([name, x]) => [name, x.type === 'checkbox' ? x.checked : x.value.trim()]).filter(([, value]) => value));
  }

  /** remember puts the question into the page's address, so that it can be shared, and sends it. */
  remember() {
    this.query = new URLSearchParams(this.question()).toString();
    history.replaceState(null, '', `#/${this.name}?${this.query}`);
    this.request();
  }

  async request() {
    const number = ++this.number; // a later question has the answer shown
    this.submit.setAttribute('aria-busy', 'true');
    try {
      const answer = await this.ask(this.question());
      if (number !== this.number) return;
      blame(this.form, null);
      this.reveal(true);
      this.show(answer);
    } catch (e) {
      if (this.abort.signal.aborted || number !== this.number) return;
      this.reveal(false);
      blame(this.form, e);
    } finally {
      this.submit.removeAttribute('aria-busy');
    }
  }

  reveal(is) {
    this.result.hidden = !is;
    this.invitation.hidden = is;
  }

  /** draw draws the path of a packet, and what is beside it. */
  draw(record) {
    this.picture.show(record);
    replace(this.side, candidates(record), facts(record), raw(record));
  }
}
