// Package kubeproxytest has the real kube-proxy write its rules, for tests that compare with them.
package kubeproxytest
