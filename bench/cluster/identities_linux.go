package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Files in Config.Dir.
const (
	servingCert     = "apiserver.crt"
	servingKey      = "apiserver.key"
	tokenKey        = "serviceaccounts.key"
	tokenFile       = "tokens.csv"
	adminKubeconfig = "admin.kubeconfig"
	authorityCert   = "ca.crt"
	kubeletUserCert = "apiserver-kubelet.crt"
	kubeletUserKey  = "apiserver-kubelet.key"
)

// writeIdentities makes the API server's certificates, the key that signs service
// account tokens, and the administrator's token and kubeconfig.
func (c *Cluster) writeIdentities() (err error) {
	if c.ca, err = newAuthority(); err != nil {
		return err
	}
	addresses := append([]netip.Addr{loopback, netip.IPv6Loopback()}, c.config.Addresses...)
	for _, cidr := range c.config.ServiceCIDRs {
		addresses = append(addresses, cidr.Masked().Addr().Next())
	}
	cert, key, err := c.ca.serving(addresses, []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"})
	if err != nil {
		return err
	}
	userCert, userKey, err := c.ca.client("kube-apiserver", []string{"system:masters"})
	if err != nil {
		return err
	}
	_, signer, err := newKey()
	if err != nil {
		return err
	}
	c.admin = rand.Text()
	for name, text := range map[string][]byte{
		authorityCert:   c.ca.certPEM,
		servingCert:     cert,
		servingKey:      key,
		kubeletUserCert: userCert,
		kubeletUserKey:  userKey,
		tokenKey:        signer,
		// RBAC lets this group do everything, from the first moment on.
		tokenFile: fmt.Appendf(nil, "%s,admin,admin,system:masters\n", c.admin),
	} {
		if err := os.WriteFile(c.path(name), text, 0o600); err != nil {
			return err
		}
	}
	return c.writeKubeconfig(c.Kubeconfig(), netip.Addr{}, &api.AuthInfo{Token: c.admin})
}

// path is that of a file in Dir.
func (c *Cluster) path(name string) string { return filepath.Join(c.config.Dir, name) }

// Kubeconfig is the path of a kubeconfig with all rights, for programs that run
// where the control plane does.
func (c *Cluster) Kubeconfig() string { return c.path(adminKubeconfig) }

// KubeconfigFor writes a kubeconfig with which a program reaches the API server at
// an address (see [Cluster.URL]) as a service account, and gives its path. The
// account must exist. It has the rights that roles bound to it give; its token is
// valid for a day, across restarts.
func (c *Cluster) KubeconfigFor(ctx context.Context, namespace, account string, server netip.Addr) (path string, err error) {
	token, err := c.TokenFor(ctx, namespace, account)
	if err != nil {
		return "", err
	}
	file, err := os.CreateTemp(c.config.Dir, namespace+"-"+account+"-*.kubeconfig")
	if err != nil {
		return "", err
	}
	if err := file.Close(); err != nil {
		return "", err
	}
	return file.Name(), c.writeKubeconfig(file.Name(), server, &api.AuthInfo{Token: token})
}

// UserKubeconfig writes a kubeconfig with which a program reaches the API server at an address
// (see [Cluster.URL]) as a user in some groups, and gives its path. The credentials are a
// certificate: the user need not exist.
func (c *Cluster) UserKubeconfig(user string, groups []string, server netip.Addr) (path string, err error) {
	cert, key, err := c.ca.client(user, groups)
	if err != nil {
		return "", err
	}
	path = c.path(strings.ReplaceAll(user, ":", "-") + ".kubeconfig")
	return path, c.writeKubeconfig(path, server, &api.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}

// Authority is the path of the certificate of the authority, which signs the certificates of the
// API server and of users.
func (c *Cluster) Authority() string { return c.path(authorityCert) }

// Account makes a service account in kube-system with a cluster role, and gives the path of a
// kubeconfig for it (see [Cluster.KubeconfigFor]).
func (c *Cluster) Account(ctx context.Context, name, role string, server netip.Addr) (kubeconfig string, err error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	if _, err := c.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: name}},
	}, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	return c.KubeconfigFor(ctx, metav1.NamespaceSystem, name, server)
}

// TokenFor gives a bearer token of a service account; see [Cluster.KubeconfigFor].
func (c *Cluster) TokenFor(ctx context.Context, namespace, account string) (string, error) {
	seconds := int64(24 * 60 * 60)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	got, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of service account %s/%s: %w", namespace, account, err)
	}
	return got.Status.Token, nil
}

func (c *Cluster) writeKubeconfig(path string, server netip.Addr, user *api.AuthInfo) error {
	const name = "nfqproxy"
	config := api.NewConfig()
	config.Clusters[name] = &api.Cluster{Server: c.URL(server), CertificateAuthorityData: c.ca.certPEM}
	config.AuthInfos[name] = user
	config.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return clientcmd.WriteToFile(*config, path)
}
