// Writes the pages of the site: node pages.mjs REPOSITORY DIRECTORY VERSION REVISION. docs/README.md is the list of pages,
// and what navigation is built from. A link to a page that is not in the list, or to another file, leads to the repository.
import { execFileSync } from 'node:child_process'
import { copyFileSync, existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { basename, dirname, join, normalize, relative } from 'node:path'

const [repository, out, version, revision] = process.argv.slice(2)
const source = 'https://github.com/nfqproxy/nfqproxy'

const read = (path) => readFileSync(join(repository, path), 'utf8')
const program = (...args) => execFileSync(join(repository, 'bin/nfqproxy'), args, { encoding: 'utf8', maxBuffer: 1 << 26 })

rmSync(out, { recursive: true, force: true })
function write(page, text) {
  mkdirSync(dirname(join(out, page)), { recursive: true })
  writeFileSync(join(out, page), text)
}

// sitePath is where the site has a page of the repository: docs/how-to/install.md at how-to/install.md, and
// deploy/helm/README.md at deploy/helm.md.
const sitePath = (path) => path.replace(/^docs\//, '').replace(/\/README\.md$/, '.md').toLowerCase()

// The list: sections of entries "- [Title](page.md): What it is about."
const sections = read('docs/README.md').split(/^## /m).slice(1).map((text) => ({
  title: text.slice(0, text.indexOf('\n')),
  pages: [...text.matchAll(/^- \[([^\]]+)\]\(([^)#]+\.md)\): (\S.*)$/gm)].map(([, title, path, about]) => {
    path = normalize(join('docs', path))
    return { title, about, path, page: sitePath(path) }
  }),
}))
const pageOf = new Map(sections.flatMap((s) => s.pages.map((p) => [p.path, p.page])))
pageOf.set('docs/README.md', 'contents.md')

// linked changes the links of a page for its place on the site.
function linked(text, path, page) {
  const link = (whole, before, target) => {
    if (target.includes('://') || target.startsWith('#')) return whole
    const [file, anchor] = target.split('#')
    const wanted = normalize(join(dirname(path), file)).replace(/\/$/, '')
    if (!existsSync(join(repository, wanted))) throw new Error(`${path}: link ${target}: no such file`)
    const hash = anchor ? '#' + anchor : ''
    if (pageOf.has(wanted)) return `${before}(${relativeTo(page, pageOf.get(wanted))}${hash})`
    if (/\.(png|svg)$/.test(wanted)) {
      const copy = join('files', wanted)
      mkdirSync(dirname(join(out, copy)), { recursive: true })
      copyFileSync(join(repository, wanted), join(out, copy))
      return `${before}(${relativeTo(page, copy)})`
    }
    const kind = statSync(join(repository, wanted)).isDirectory() ? 'tree' : 'blob'
    return `${before}(${source}/${kind}/${revision || 'main'}/${wanted}${hash})`
  }
  // Code keeps its text.
  return text.split(/(^ *```[\s\S]*?^ *```|`[^`\n]*`|^ {4}.*$)/m).map((part, i) => i % 2 ? part : part.replace(/(\])\(([^()\s]+)\)/g, link)).join('')
}

const relativeTo = (page, target) => {
  const path = relative(dirname(page), target)
  return path.startsWith('.') ? path : './' + path
}

for (const [path, page] of pageOf) write(page, linked(read(path), path, page))

// The course, a page for each chapter.
const course = program('learn', 'book', '-o', 'markdown').split(/^(?=## \d)/m).slice(1).map((text) => {
  const [, number, title] = text.match(/^## (\d+)\. (.*)/)
  const page = `course/${number}.md`
  write(page, text.replace(/^#(#+ )/gm, '$1').replace(/^# .*\n/, `# ${number}. ${title}\n\nChapter ${number} of the course that \`nfqproxy learn\` plays in labs, with checks and hints.\n`))
  return { title: `${number}. ${title}`, page }
})

// The help of every command: a heading for each, and its text.
const help = (path) => {
  const text = program(...path, '--help')
  const [, list = ''] = text.match(/Available Commands:\n((?: {2}.*\n)+)/) ?? []
  return [{ path, text }, ...[...list.matchAll(/^ {2}(\S+)/gm)].flatMap(([, name]) => help([...path, name]))]
}
const commands = [...program('help').matchAll(/^ {2}([a-z-]+) {2,}\S/gm)].map(([, name]) => name).filter((name) => name !== 'help')
write('reference/help.md', '# Help of the commands\n\nWhat `nfqproxy COMMAND --help` prints, of this version.\n\n' +
  commands.sort().flatMap((name) => help([name])).map(({ path, text }) => `## ${path.join(' ')}\n\n\`\`\`text\n${text.trimEnd()}\n\`\`\`\n`).join('\n'))

// The metrics of a daemon, from the exposition that its tests compare.
const metrics = [...read('control/live/metrics/testdata/exposition.golden').matchAll(/^# (\w+): (.*)\n(\w+)/gm)]
write('reference/metrics.md', '# Metrics\n\nThe metrics that a daemon serves at `127.0.0.1:10249/metrics`. Those that begin with `kubeproxy_` mean what they mean in kube-proxy.\n\n' +
  metrics.map(([, type, help, name]) => `- \`${name}\` (${type}): ${help}`).join('\n') + '\n')

// The start page: what README.md says of the project, with its picture.
const [, tagline] = read('README.md').match(/^# .*\n\n([\s\S]*?)\n\n/)
const [, alt, picture] = read('README.md').match(/!\[([^\]]*)\]\(([^)]+)\)/)
const start = {
  layout: 'home',
  hero: {
    name: 'nfqproxy',
    text: 'See how a Service becomes a connection',
    tagline: tagline.replace(/\s+/g, ' ').replace(/[`*]/g, ''),
    image: { src: '/' + basename(picture), alt },
    actions: [
      { theme: 'brand', text: 'Start with a tutorial', link: '/' + sections[0].pages[0].page },
      { theme: 'alt', text: 'Install', link: '/how-to/install.md' },
      { theme: 'alt', text: 'Take the course', link: '/' + course[0].page },
      { theme: 'alt', text: 'All pages', link: '/contents.md' },
    ],
  },
  features: sections.slice(0, 4).map((s) => ({ title: s.title, details: s.pages.slice(0, 6).map((p) => p.title).join(' · '), link: '/' + s.pages[0].page })),
}
write('index.md', `---\n${JSON.stringify(start)}\n---\n`)
mkdirSync(join(out, 'public'))
copyFileSync(join(repository, picture), join(out, 'public', basename(picture)))

const made = { 'How-to guides': [], Reference: [{ title: 'Help of the commands', page: 'reference/help.md' }, { title: 'Metrics', page: 'reference/metrics.md' }] }
writeFileSync(join(out, 'contents.json'), JSON.stringify({
  version, source, revision,
  sections: [...sections.map((s) => ({ title: s.title, pages: [...s.pages, ...(made[s.title] ?? [])] })), { title: 'The course', pages: course }]
    .map(({ title, pages }) => ({ title, pages: pages.map(({ title, page }) => ({ title, page })) })),
}))
