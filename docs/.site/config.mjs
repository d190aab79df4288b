import { readFileSync } from 'node:fs'
import { defineConfig } from 'vitepress'

const { version, source, sections } = JSON.parse(readFileSync(new URL('../src/contents.json', import.meta.url), 'utf8'))

// slugify makes the anchors that GitHub makes, so that links work in both places.
const slugify = (text) => text.toLowerCase().replace(/[^\p{L}\p{N} _-]/gu, '').replaceAll(' ', '-')

const shell = /^ *(\$ |#|nfqproxy|\.\/bin|kubectl|make|sudo|curl|helm|go |docker|git|ip |nft|conntrack|openssl|hubble|ssh|brew|limactl|multipass|orb|wsl|apt|dnf|tar|install|source|for |GOTOOLCHAIN|dmesg|zgrep|iptables|answer|on |systemctl|taskset)/

export default defineConfig({
  srcDir: 'src',
  outDir: '../site',
  base: process.env.SITE_BASE || '/',
  title: 'nfqproxy',
  description: 'A Kubernetes service proxy that makes every decision visible',
  lang: 'en',
  head: [['link', { rel: 'icon', href: 'data:,' }]],
  metaChunk: true,
  markdown: {
    anchor: { slugify },
    toc: { slugify },
    headers: { slugify },
    attrs: { disable: true },
    theme: { light: 'github-light', dark: 'github-dark' },
    config(md) {
      md.set({ html: false, linkify: false })
      const fence = md.renderer.rules.fence
      md.renderer.rules.code_block = (tokens, i, ...rest) => {
        tokens[i].info = shell.test(tokens[i].content) ? 'sh' : /^\s*(apiVersion:|- |\w+: ?\S*$)/m.test(tokens[i].content) ? 'yaml' : 'text'
        return fence(tokens, i, ...rest)
      }
    },
  },
  themeConfig: {
    search: {
      provider: 'local',
      options: {
        detailedView: true,
        miniSearch: {
          // "kernel's" is two terms, of which the second one is in every text.
          options: { processTerm: (term) => (term.length > 1 ? term.toLowerCase() : null) },
          searchOptions: { combineWith: 'AND', fuzzy: 0.1, prefix: true, boost: { title: 4, text: 2, titles: 1 } },
        },
      },
    },
    outline: [2, 3],
    nav: [
      ...sections.slice(0, 4).map(({ title, pages }) => ({ text: title, link: '/' + pages[0].page, activeMatch: '^/' + pages[0].page.split('/')[0] + '/' })),
      { text: 'Course', link: '/course/1.md', activeMatch: '^/course/' },
      { text: version, items: [{ text: 'Changelog', link: source + '/blob/main/CHANGELOG.md' }, { text: 'Source', link: source }] },
    ],
    sidebar: sections.map(({ title, pages }) => ({ text: title, collapsed: false, items: pages.map(({ title, page }) => ({ text: title, link: '/' + page })) })),
    footer: { message: `Version ${version}. Apache License 2.0.` },
    docFooter: { prev: false, next: false },
  },
})
