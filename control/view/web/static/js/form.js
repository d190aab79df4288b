// Fields of forms and the place of their errors.

import { h } from './dom.js';

/** field is an input with its label and a place for its error. */
export function field(name, label, input, hint) {
  input.id = `field-${name}`;
  input.name = name;
  input.setAttribute('aria-describedby', `field-${name}-wrong`);
  return h('div', { class: 'field-box', 'data-field': name },
    h('label', { for: input.id }, label), input, hint && h('p', { class: 'hint' }, hint),
    h('p', { class: 'wrong', id: `field-${name}-wrong`, role: 'alert', hidden: true }));
}

/** blame shows an API's error at the field that it names, or else at the form's end. */
export function blame(form, error) {
  for (const wrong of form.querySelectorAll('.wrong')) { wrong.hidden = true; wrong.textContent = ''; }
  for (const input of form.querySelectorAll('[aria-invalid]')) input.removeAttribute('aria-invalid');
  if (!error) return;
  const box = [...form.querySelectorAll('.field-box')].find((b) => b.dataset.field === error.field);
  const wrong = (box ?? form).querySelector(box ? '.wrong' : '.wrong.all');
  wrong.textContent = error.message;
  wrong.hidden = false;
  const input = box?.querySelector('input, select, textarea');
  input?.setAttribute('aria-invalid', 'true');
  input?.focus();
}
