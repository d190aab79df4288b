# The targets for developers. CI runs "make lint peers test" (see .ci/run).

GO          ?= go
# A fixed length: by default a commit's abbreviation is longer in a clone with more objects.
VERSION     ?= $(shell git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo unknown)
REVISION     = $(shell git rev-parse HEAD 2>/dev/null)
PLATFORMS   ?= linux-amd64 linux-arm64 darwin-amd64 darwin-arm64
GOLANGCI    ?= github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# A number of calls: with a time limit go test -fuzz sometimes fails at its end.
FUZZTIME    ?= 3000x

# Most machines have no Go. Versions before 1.21 do not fetch the version that go.mod requires,
# and only report that they cannot read the file.
need-go:
	@want=$$(sed -n 's/^go \([0-9]*\.[0-9]*\).*/\1/p' go.mod); \
	how="install Go $$want or newer (https://go.dev/doc/install) and put its bin directory in PATH, or set its path: make GO=/usr/local/go/bin/go"; \
	if ! command -v $(GO) >/dev/null 2>&1; then \
		echo "make requires Go, but the program \"$(GO)\" is not found: $$how" >&2; exit 1; \
	fi; \
	case $$(GOTOOLCHAIN=local $(GO) version 2>/dev/null) in \
	*" go1."?" "* | *" go1."?.* | *" go1.1"* | *" go1.20"*) \
		echo "make requires Go $$want, but \"$(GO)\" is older: $$how" >&2; exit 1;; \
	esac

# The race detector requires a C compiler; the program itself does not.
RACE := $(shell command -v $(GO) >/dev/null 2>&1 && $(GO) env CGO_ENABLED | grep -q 1 && command -v gcc >/dev/null 2>&1 && echo -race)

.PHONY: need-go need-npm build site $(PLATFORMS:%=build-%) image image-lab release release-test demo peers bench-peers manifests chart check test test-all test-live test-plain test-course test-packing soak lint bench bench-quick bench-micro bench-scale bench-attack floor fuzz clean

# Static binaries that need no other program at run time: nfqproxy, the tool, and nfqproxyd, the daemon. With grpc's trace pages the linker would
# keep all methods of all types. It depends on the sources, Go and the version only:
# neither on the folder nor on what git has there (-buildvcs).
BUILD = CGO_ENABLED=0 $(GO) build -tags grpcnotrace -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION) -X github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli.version=$(VERSION)'
PROGRAMS = ./cmd/nfqproxy $(if $(filter linux,$(or $(1),$(shell $(GO) env GOOS 2>/dev/null))),./cmd/nfqproxyd)
build: need-go
	$(BUILD) -o bin/ $(call PROGRAMS)

# The same for other platforms: bin/linux-arm64/nfqproxy. The daemon is for Linux only.
$(PLATFORMS:%=build-%): build-%: need-go
	@mkdir -p bin/$*
	GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) $(BUILD) -o bin/$*/ $(call PROGRAMS,$(word 1,$(subst -, ,$*)))

# The pages of docs, the course, the help of the commands and the metrics as a static site, with search, in bin/site. A dead
# link is an error. SITE_BASE is its path at the server: "make site SITE_BASE=/nfqproxy/".
NPM       ?= npm
SITE_BASE ?= /
SITE      := bin/site-build
need-npm:
	@if ! command -v $(NPM) >/dev/null 2>&1 || ! command -v node >/dev/null 2>&1; then \
		echo "make site requires Node.js 20 or newer and npm, but \"$(NPM)\" or \"node\" is not found: install them (Debian: nodejs npm), or set npm's path: make site NPM=/opt/node/bin/npm" >&2; exit 1; \
	fi; \
	if ! node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'; then \
		echo "make site requires Node.js 20 or newer; node is $$(node --version)" >&2; exit 1; \
	fi

# npm-ci installs what the lock of one directory has in another one, unless it is there.
npm-ci = mkdir -p $(2) && cp $(1)/package.json $(1)/package-lock.json $(2)/ && { cmp -s $(2)/package-lock.json $(2)/node_modules/.lock || \
	{ $(NPM) ci --prefix $(2) --ignore-scripts --no-audit --no-fund && cp $(2)/package-lock.json $(2)/node_modules/.lock; }; }

site: need-npm build
	@mkdir -p $(SITE)/.vitepress && cp -r docs/.site/config.mjs docs/.site/theme $(SITE)/.vitepress/
	@$(call npm-ci,docs/.site,$(SITE))
	@node docs/.site/pages.mjs . $(SITE)/src '$(VERSION)' '$(REVISION)'
	cd $(SITE) && SITE_BASE='$(SITE_BASE)' node_modules/.bin/vitepress build

# An image for amd64 and arm64, without Docker and without root (see docs/how-to/release.md):
# "make image IMAGE=registry.example/nfqproxy:v1 PUSH=1" pushes it.
IMAGE ?= nfqproxy:dev
PUSH  ?= 0
image image-lab release: export GO := $(GO)
image release: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)
image: build-linux-amd64 build-linux-arm64
	@cd deploy/release && $(GO) run ./image -name '$(IMAGE)' -version '$(VERSION)' -revision '$(REVISION)' -push=$(PUSH) -out ../../bin \
		../../bin/linux-amd64/nfqproxy ../../bin/linux-arm64/nfqproxy

# An image to run labs in, with the tools of the labs, of packages of Debian (see docs/how-to/run-labs-elsewhere.md). It requires
# apt-get and dpkg-deb, and no root: "docker load -i bin/nfqproxy-lab-image-amd64.tar" loads it.
LAB_IMAGE ?= nfqproxy-lab:dev
LAB_ARCHS ?= amd64 arm64
image-lab: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)
image-lab: $(LAB_ARCHS:%=build-linux-%)
	deploy/release/lab-root.sh bin/lab-root $(LAB_ARCHS)
	@cd deploy/release && $(GO) run ./image -lab ../../bin/lab-root -name '$(LAB_IMAGE)' -version '$(VERSION)' -revision '$(REVISION)' -push=$(PUSH) -out ../../bin \
		$(LAB_ARCHS:%=../../bin/linux-%/nfqproxy)

# The files of a release, in bin/release: "make release VERSION=v1.2.3" (see docs/how-to/release.md).
CHANGELOG ?= CHANGELOG.md
RELEASE    = cd deploy/release && $(GO) run . -version '$(VERSION)' -changelog '$(abspath $(CHANGELOG))' -revision '$(REVISION)'
release: IMAGE = nfqproxy:$(VERSION)
release: need-go
	@$(RELEASE) -check
	@$(MAKE) --no-print-directory $(PLATFORMS:%=build-%) image chart IMAGE='$(IMAGE)'
	@rm -rf bin/manual && $(GO) run ./cmd/nfqproxy/manual bin/manual
	@$(RELEASE) $(PLATFORMS)

# Installs the files of bin/release in copies of this machine in memory, and makes them again in another
# directory. Requires root, and on Debian: bash-completion containerd curl iproute2 man-db nftables rpm runc systemd.
release-test: export CHANGELOG := $(abspath $(CHANGELOG))
release-test: need-go
	cd deploy/release && $(GO) test -count=1 -timeout 60m -tags release ./installtest

# A three-node cluster in network namespaces: real requests, their decisions and results.
demo: build
	./bin/nfqproxy lab demo

# etcd, the Kubernetes control plane and kube-proxy for end-to-end tests and benchmarks (see
# bench/peers). Without them such tests are skipped.
PEERS := bench/peers/bin
peers bench-peers: $(PEERS)/.built $(PEERS)/portforward $(PEERS)/hubble $(PEERS)/hubble-relay $(PEERS)/promql $(PEERS)/otelcol $(PEERS)/helm $(PEERS)/newest-nft/nft

# A program is built once for all clones of the repository. Its command writes into $$OUT, and names all that it depends on
# besides the files behind it.
ONCE = GO='$(GO)' CGO_ENABLED=0 bench/peers/build-once.sh $(PEERS)

# Programs built from the module proxy lack their version, which they require.
$(PEERS)/.built: bench/peers/go.mod bench/peers/go.sum | need-go
	$(ONCE) control-plane 'cd bench/peers && \
	version=$$($(GO) list -m -f "{{.Version}}" k8s.io/kubernetes) && \
	minor=$${version#v1.} && v=k8s.io/component-base/version && \
	$(GO) build -trimpath -o "$$OUT/" -ldflags "-s -w -X $$v.gitVersion=$$version -X $$v.gitMajor=1 -X $$v.gitMinor=$${minor%%.*}" \
		k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager \
		k8s.io/kubernetes/cmd/kube-proxy k8s.io/kubernetes/cmd/kubectl && \
	$(GO) build -trimpath -o "$$OUT/etcd" -ldflags "-s -w" go.etcd.io/etcd/server/v3' $^
	@touch $@

# Debian's newest nft: tests list the kernel rules with it, too.
$(PEERS)/newest-nft/nft: bench/peers/newest-nft.sh
	@mkdir -p $(PEERS)
	@if [ -f /usr/share/keyrings/debian-archive-keyring.gpg ] && command -v apt-get >/dev/null; then \
		bench/peers/newest-nft.sh $(PEERS)/newest-nft; else echo "not on Debian: left out the newest nft"; fi

# The part of a kubelet that kubectl port-forward needs.
$(PEERS)/portforward: bench/peers/go.mod bench/peers/go.sum bench/peers/portforward/main.go | need-go
	$(ONCE) portforward 'cd bench/peers && $(GO) build -trimpath -o "$$OUT/portforward" -ldflags "-s -w" ./portforward' $^

# Cilium's commands hubble and hubble-relay, from a copy of its module. Two of its packages have files
# that import the whole agent; the commands are built without them.
$(PEERS)/hubble $(PEERS)/hubble-relay: bench/peers/hubble/go.mod bench/peers/hubble/go.sum | need-go
	$(ONCE) $(@F) 'cd bench/peers/hubble && $(GO) mod download github.com/cilium/cilium && \
	source=$$($(GO) list -m -f "{{.Dir}}" github.com/cilium/cilium) && \
	version=$$($(GO) list -m -f "{{.Version}}" github.com/cilium/cilium) && \
	copy=$$(mktemp -d) && trap "rm -rf $$copy" EXIT && \
	cp -r "$$source"/go.mod "$$source"/go.sum "$$source"/api "$$source"/hubble "$$source"/hubble-relay "$$source"/pkg "$$copy" && \
	chmod -R u+w "$$copy" && rm "$$copy"/pkg/monitor/api/*_linux.go "$$copy"/pkg/hubble/peer/service.go && \
	cd "$$copy" && $(GO) build -trimpath -o "$$OUT/" -ldflags "-s -w -X github.com/cilium/cilium/hubble/pkg.Version=$$version" ./$(@F)' $^

# Prometheus' parser of expressions.
$(PEERS)/promql: bench/peers/promql/go.mod bench/peers/promql/go.sum bench/peers/promql/main.go | need-go
	$(ONCE) promql 'cd bench/peers/promql && $(GO) build -trimpath -o "$$OUT/promql" -ldflags "-s -w" .' $^

.PHONY: e2e e2e-quick e2e-programs

# Kubernetes' own tests of the network, and the programs of clusters with nodes (see bench/e2e).
e2e-programs: peers $(PEERS)/.e2e $(PEERS)/coredns $(PEERS)/pause $(PEERS)/peer

$(PEERS)/.e2e: bench/peers/e2e/go.mod bench/peers/e2e/go.sum bench/peers/e2e/e2e_test.go | need-go
	$(ONCE) e2e 'cd bench/peers/e2e && \
	version=$$($(GO) list -m -f "{{.Version}}" k8s.io/kubernetes) && \
	minor=$${version#v1.} && v=k8s.io/component-base/version && \
	flags="-s -w -X $$v.gitVersion=$$version -X $$v.gitMajor=1 -X $$v.gitMinor=$${minor%%.*}" && \
	$(GO) test -c -trimpath -o "$$OUT/e2e.test" -ldflags "$$flags" . && \
	$(GO) build -trimpath -o "$$OUT/" -ldflags "$$flags" tool && \
	mkdir "$$OUT/porter" && \
	cp "$$($(GO) list -m -f "{{.Dir}}" k8s.io/kubernetes)"/test/images/agnhost/porter/localhost.* "$$OUT/porter/"' $^
	@touch $@

$(PEERS)/coredns: bench/peers/coredns/go.mod bench/peers/coredns/go.sum bench/peers/coredns/main.go | need-go
	$(ONCE) coredns 'cd bench/peers/coredns && $(GO) build -trimpath -o "$$OUT/coredns" -ldflags "-s -w" .' $^

$(PEERS)/pause $(PEERS)/peer: $(PEERS)/%: bench/e2e/%/main.go $(wildcard bench/e2e/load/*.go) | need-go
	@mkdir -p $(PEERS)
	CGO_ENABLED=0 $(GO) build -trimpath -o $@ -ldflags '-s -w' ./bench/e2e/$*

# Helm, which renders the chart. Built within its own module, which lies in the module cache.
$(PEERS)/helm: bench/peers/helm/go.mod bench/peers/helm/go.sum | need-go
	$(ONCE) helm 'cd bench/peers/helm && $(GO) mod download helm.sh/helm/v4 && \
	source=$$($(GO) list -m -f "{{.Dir}}" helm.sh/helm/v4) && \
	version=$$($(GO) list -m -f "{{.Version}}" helm.sh/helm/v4) && \
	cd "$$source" && $(GO) build -trimpath -o "$$OUT/" -ldflags "-s -w -X helm.sh/helm/v4/internal/version.version=$$version" ./cmd/helm' $^

# The manifests for kustomize, rendered from the chart (see deploy/helm).
manifests: $(PEERS)/helm
	$(GO) test -count=1 ./deploy/helm -run '^TestManifests$$' -update

# The chart as a package, of the version VERSION if that is a semantic one (v1.2.3); then this is also the
# tag of the image. The files in it have the time of the commit, so that it is reproducible.
CHART_VERSION = $(shell echo '$(VERSION)' | sed -n 's/^v\([0-9]*\.[0-9]*\.[0-9]*\(-.*\)\{0,1\}\)$$/\1/p')
chart: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
chart: $(PEERS)/helm
	@mkdir -p bin/chart
	$(PEERS)/helm package deploy/helm/nfqproxy -d bin/chart \
		$(if $(CHART_VERSION),--version $(CHART_VERSION) --app-version $(VERSION),--version 0.0.0-g$(VERSION))

# An OpenTelemetry collector.
$(PEERS)/otelcol: bench/peers/otelcol/go.mod bench/peers/otelcol/go.sum bench/peers/otelcol/main.go | need-go
	$(ONCE) otelcol 'cd bench/peers/otelcol && $(GO) build -trimpath -o "$$OUT/otelcol" -ldflags "-s -w" .' $^

# What a contributor runs at every save: no kernel, no browser, no other program.
check: need-go
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$unformatted" ]; then echo "not formatted: $$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) test -short ./cmd/nfqproxy/cli ./conntrack/... ./control/... ./datapath/... ./deploy/... ./docs

# Tests of "make test-all" alone. Each shows more of what another test of its package shows: another size, another page, another
# way to run the same experiment. Their names are unique, see TestLaterTests in docs.
LATER := \
	TestClusterView TestSwitchover \
	TestExperimentAlgorithm TestExperimentCommand TestExperimentLive TestExperimentScript TestNamesInALab \
	TestPathsInALab TestSecondChanceInALab TestStoryOfDrop TestStoryWithoutNode TestWatchForInALab \
	TestBalancePage TestEstimateLive TestOTLPLosses TestPageChangesALab TestPageOfALab TestPageOffLoopback TestShadows \
	TestScreen TestSmallScreen TestNoProof \
	TestBalanceAndSeed TestPortReuse TestSoak \
	TestChangesOfAService TestHostileLesson TestLearnLive TestManyFlows TestMapCounts TestMemoryIsBounded \
	TestPageOfManyServices TestPictureOfTranslatedFlow TestPortsAreVisible TestSlowDrawing TestWayOnSeveralNodes \
	TestFullTableServes TestReversePath \
	TestHelmLint TestOverlays TestRelease TestServerTakesOverlays
space := $() $()

# Unit, kernel and end-to-end tests: all that proves the product, and of what has many cases a selection. Tests that lack
# something on this machine are listed at the end, even if others fail, with the subject that stays untested; with
# CI=true they fail. So are the packages that took longest. A hundred test programs are linked each time:
# without symbols for a debugger that takes less time. "make check" and "make lint" run go vet.
test: need-go
	@$(call tested,$(GO) test -p 2 -count=1 -timeout 15m -vet=off -ldflags='-s -w' -skip '^($(subst $(space),|,$(strip $(LATER))))$$' ./...)

# For releases: all cases (the whole course among them), the race detector, packing, and a short run of every fuzz target.
test-all: export NFQPROXY_TEST := all
test-all: need-go
	@$(call tested,$(MAKE) --no-print-directory -k test-live test-course test-packing test-plain fuzz)

# tested runs a command that prints the lines of "go test", and then lists what was skipped and the slowest packages.
define tested
skipped=$$(mktemp); lines=$$(mktemp); failed=$$(mktemp); trap 'rm -f "$$skipped" "$$lines" "$$failed"' EXIT; export NFQPROXY_SKIPPED=$$skipped; \
{ $(1) || echo $$? >"$$failed"; } | tee "$$lines"; \
if [ -s "$$skipped" ]; then echo "Skipped, because this machine lacks something:"; sort -u "$$skipped" | awk -F '\t' '{ n[$$1]++; split($$2, at, " "); if (!seen[$$1, at[1]]++) in_[$$1] = in_[$$1] (in_[$$1] ? ", " : "") at[1] } END { for (why in n) print why ": " n[why] (n[why] == 1 ? " test" : " tests") ", in " in_[why] }' | sort; fi; \
awk '($$1 == "ok" || $$1 == "FAIL") && $$3 ~ /^[0-9.]+s$$/ { print $$3, $$2 }' "$$lines" | sort -rn | head -n 10 | awk 'NR == 1 { print "Slowest packages:" } { print "  " $$0 }'; \
if [ -s "$$failed" ]; then exit "$$(cat "$$failed")"; fi
endef

# What is tested without the race detector: the simulator has no goroutines, and its tests take three times as long with
# it; the tests of views drive a browser; those of the commands, of the course and most end-to-end tests start thousands
# of processes, each of which starts four times as slowly with it. The packages that these are made of are tested with
# it, and the daemons of e2e/daemon and e2e/serving.
COURSE := /cmd/nfqproxy/e2e/learn$$
PLAIN := /((datapath|control)/paper|control/view|cmd/nfqproxy/(cli|e2e/(apiserver|flows|hostrules|labs))|deploy/(experiment|helm|kubernetes|krew|labs)|docs|bench)(/|$$)

# As many packages as there are processors run at once. The race detector does not pause at the end of a process.
test-live: need-go
	@GORACE=atexit_sleep_ms=0 $(GO) test $(RACE) -count=1 -timeout 60m $$($(GO) list ./... | grep -vE '$(PLAIN)|$(COURSE)')

# The course's proofs run six labs at once: nothing else runs beside them.
test-course: need-go
	@$(GO) test -count=1 -timeout 60m ./cmd/nfqproxy/e2e/learn

# What packs images and packages is a module of its own.
test-packing: need-go
	@cd deploy/release && $(GO) test -count=1 ./...

test-plain: need-go
	@$(GO) test -count=1 -timeout 60m $$($(GO) list ./... | grep -E '$(PLAIN)')

# Continuous connections while endpoints and services change: none may fail, and the daemons'
# memory must not grow. "make test" runs it for some seconds, with the race detector.
SOAK ?= 5m
soak: need-go
	$(GO) test -count=1 -timeout 24h -v -run '^TestSoak$$' ./cmd/nfqproxy/e2e/daemon -soak $(SOAK)

# A package with several targets is linked once.
fuzz: need-go
	@bin=$$(mktemp -d); trap 'rm -rf "$$bin"' EXIT; cache=$$($(GO) env GOCACHE)/fuzz; \
	$(GO) list -f '{{.ImportPath}} {{.Dir}}' ./... | while read -r p dir; do \
		targets=$$(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\)(.*/\1/p' "$$dir"/*_test.go 2>/dev/null); \
		[ -n "$$targets" ] || continue; \
		$(GO) test -c -fuzz . -o "$$bin/test" "$$p" || exit 1; \
		for f in $$targets; do \
			echo "fuzz $$p $$f"; \
			(cd "$$dir" && "$$bin/test" -test.run '^$$' -test.fuzz "^$$f\$$" -test.fuzztime $(FUZZTIME) -test.fuzzcachedir "$$cache/$$p" </dev/null) || exit 1; \
		done; \
	done

# Modules of their own with Go code. Those of bench/peers are left out: to type-check them takes as long as to build
# Kubernetes, of which their few lines are wrappers.
NESTED := deploy/release bench/plot control/view/hubbleapi/hubblepb/generate

# golangci-lint, with go vet and staticcheck among its linters, is built from its module; see
# .golangci.yml.
LINT := bin/$(subst @,-,$(notdir $(GOLANGCI)))
$(LINT): | need-go
	$(subst $(PEERS),bin,$(ONCE)) $(@F) 'GOBIN="$$OUT" $(GO) install $(GOLANGCI) && mv "$$OUT/golangci-lint" "$$OUT/$(@F)"'

PAGE := control/view/web
lint: need-go $(LINT)
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$unformatted" ]; then echo "not formatted: $$unformatted"; exit 1; fi
	$(LINT) run
	$(GO) mod tidy -diff
	@for dir in $(NESTED); do \
		echo "lint $$dir"; \
		(cd $$dir && $(CURDIR)/$(LINT) run --build-tags release && $(GO) mod tidy -diff) || exit 1; \
	done
	GOOS=darwin $(GO) build -o /dev/null ./cmd/nfqproxy
	@if command -v $(NPM) >/dev/null 2>&1 && { $(call npm-ci,$(PAGE),bin/.eslint); }; then \
		cp $(PAGE)/eslint.config.mjs bin/.eslint/ && \
		bin/.eslint/node_modules/.bin/eslint --config bin/.eslint/eslint.config.mjs --max-warnings 0 $(PAGE)/static/js; \
	else echo "ESLint of the page is skipped: it requires Node.js and npm (Debian: npm), and npm's registry"; fi

# nfqproxy against kube-proxy and the minimum cost of a queue (see bench/README.md): the whole
# run takes an hour per ten contestants, bench-quick two minutes. BENCHFLAGS are for
# bench/compare.
RESULTS := bench/results
bench: build peers floor
	$(GO) run ./bench/compare -out $(RESULTS) $(BENCHFLAGS)
	cd bench/plot && $(GO) run . ../../$(RESULTS)/results.csv ../../$(RESULTS)/results.svg

bench-quick: BENCHFLAGS += -quick
bench-quick: bench

# The minimum cost of a netfilter queue, in C. If it cannot be built, the comparison omits it.
FLOOR := bench/floor/bin
floor:
	@if ! printf '#include <libnetfilter_queue/libnetfilter_queue.h>\n' | gcc -E - >/dev/null 2>&1; then \
		echo "bench/floor is skipped: it requires gcc and libnetfilter_queue's headers (Debian: gcc libnetfilter-queue-dev)"; \
	else \
		mkdir -p $(FLOOR) && \
		for p in accept translate; do \
			gcc -O2 -Wall -Wextra -o $(FLOOR)/$$p bench/floor/$$p.c bench/floor/floor.c -lnetfilter_queue -lnfnetlink -pthread || exit 1; \
		done; \
	fi

# Micro-benchmarks, in benchstat's format. Those in the kernel require root.
bench-micro: need-go
	$(GO) test -run '^$$' -bench . -benchmem -count $(or $(COUNT),5) ./conntrack ./control/... ./datapath/...

# Ten thousand Services from a real API server (see bench/RESULTS.md); takes some minutes.
bench-scale: build peers
	$(GO) run ./bench/scale -csv bin/scale.csv $(SCALE)

# Floods from forged sources, with kube-proxy's iptables rules and with nfqproxy; four minutes.
bench-attack: build
	$(GO) run ./bench/attack $(ATTACK)

# Kubernetes' own tests of Services on real nodes on this machine, as root, and changes of the
# cluster under load (see bench/e2e/README.md). datapath/netns/programs/install.sh installs the packages. It takes an hour;
# "make e2e FOCUS='Services should serve a basic endpoint'" takes a minute.
PROXY    ?= nfqproxy
NODES    ?= 3
DEPLOY   ?= kustomize
CHECKS   ?= all
E2EFLAGS = -proxy=$(PROXY) -nodes=$(NODES) -deploy=$(DEPLOY) $(if $(IPV6ONLY),-ipv6-only) $(if $(OBSERVE),-observe) $(if $(KEEP),-keep) \
	$(if $(FOCUS),-focus='$(FOCUS)',-checks=$(CHECKS)) $(if $(SKIP),-skip='$(SKIP)')
e2e: build image e2e-programs
	$(GO) run ./bench/e2e -image=bin/nfqproxy-image.tar $(E2EFLAGS) run

# The conformance tests of Services, and a rolling update of nfqproxy.
e2e-quick: build e2e-programs
	$(GO) run ./bench/e2e -nodes=2 -focus='\[sig-network\] Services .*\[Conformance\]' -checks=update run

clean:
	rm -rf bin $(PEERS) $(FLOOR) $(RESULTS)
