// The form for the token that changes require.

import { setToken } from './api.js';
import { h } from './dom.js';
import { field } from './form.js';

/** tokenForm is the form below a heading. wrong is why the last token was refused, or ''. entered is called with the token set. */
export function tokenForm(heading, hint, wrong, entered) {
  const input = h('input', { type: 'password', autocomplete: 'off' });
  return h('form', { class: 'form narrow', onsubmit: (e) => { e.preventDefault(); setToken(input.value.trim()); entered(); } },
    heading, h('p', { class: 'hint' }, `${hint} The token is kept in this tab only.`),
    field('token', 'Token', input), wrong && h('p', { class: 'problem', role: 'alert' }, wrong), h('button', { type: 'submit', class: 'button primary' }, 'Continue'));
}
