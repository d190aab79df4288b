// ESLint for the page's modules: "make lint" runs it.

import js from '@eslint/js';
import globals from 'globals';

export default [{
  files: ['**/*.js'],
  languageOptions: { globals: globals.browser },
  linterOptions: { reportUnusedDisableDirectives: 'error' },
  rules: {
    ...js.configs.recommended.rules,
    eqeqeq: 'error',
    'no-shadow': 'error',
    'no-useless-assignment': 'error',
    'no-var': 'error',
    'prefer-const': 'error',
  },
}];
